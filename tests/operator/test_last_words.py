"""A container that ends for the same cause is told of in the same words each time."""

import pytest

from pagefleet_operator.last_words import last_words

LOGGED = "2026-11-30 02:22:18,123 {level} pagefleet_runtime.models.loading: {message}"
SAID = "pagefleet serve: the checkpoint file:///models/x has no config.json; give the folder that holds it"


def logged(level: str, message: str) -> str:
    return LOGGED.format(level=level, message=message)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        ("no\nmodel\n", "no model"),
        (f"{logged('INFO', 'loading took 3.21 s')}\n{SAID}\n", SAID),
        (f"{logged('WARNING', 'slow disk')}\n\n{logged('INFO', 'loading')}\n{SAID}", SAID),
        (logged("ERROR", "boom"), "ERROR pagefleet_runtime.models.loading: boom"),
        (
            f"{logged('INFO', 'stopping')}\n{logged('INFO', 'stopped')}",
            "INFO pagefleet_runtime.models.loading: stopped",
        ),
        (
            f"{logged('CRITICAL', 'the engine died')}\nTraceback (most recent call last):\nValueError: 7",
            "CRITICAL pagefleet_runtime.models.loading: the engine died"
            " Traceback (most recent call last): ValueError: 7",
        ),
        ("2026-11-30T02:22:18.5Z FATAL boom", "FATAL boom"),
        ("[2026-11-30T02:22:18+01:00] boom at 2026-11-30 02:22:19", "boom at"),
        ("INFO is a word of this sentence", "INFO is a word of this sentence"),
        ("Current thread 0x00007f3c (most recent call first)", "Current thread 0x… (most recent call first)"),
        ("rank 1 (pid 4711) ended, pid=4712", "rank 1 (pid …) ended, pid=…"),
        ("read 10.0.0.7:43412->10.96.0.10:53: timeout", "read 10.0.0.7:…->10.96.0.10:53: timeout"),
        ("[::1]:8000 is in use, port 40000 too", "[::1]:8000 is in use, port 40000 too"),
        ("request 6f1c2a34-0b1d-4c55-9a77-0123456789ab failed after 12.75 s", "request … failed after … s"),
        ("no answer within 30 s; 3.2 GiB are free", "no answer within 30 s; 3.2 GiB are free"),
        ("can't write /tmp/tmpab12cd/x.json: full", "can't write /tmp/…: full"),
    ],
)
def test_last_words_tell_the_cause_without_what_is_new_at_each_start(text: str, told: str) -> None:
    assert last_words(text) == told


def test_two_starts_that_end_alike_say_the_same() -> None:
    first = f"{logged('INFO', 'pid 7 loads')}\n{logged('ERROR', 'no room at 0x7f01 (pid 7)')}\n{SAID}"
    second = first.replace("02:22:18,123", "02:27:44,001").replace("pid 7", "pid 91").replace("0x7f01", "0x7e55")
    assert first != second
    assert last_words(first) == last_words(second)
