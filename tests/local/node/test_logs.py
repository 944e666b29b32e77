"""Logs on disk: what of them is shown, with which times."""

import asyncio
import datetime
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_local.node.log_server import common_name, log_query
from pagefleet_local.node.log_space import forget_beginning
from pagefleet_local.node.logs import LogKeeper, LogQuery, read_log, tail_message


def shown(log: Path, query: LogQuery, goes_on: Callable[[], bool] = lambda: False) -> bytes:
    async def read() -> bytes:
        return b"".join([chunk async for chunk in read_log(log, query, goes_on)])

    return asyncio.run(read())


def written(folder: Path, data: bytes, *times: tuple[int, float]) -> Path:
    log = folder / "0.log"
    log.write_bytes(data)
    log.with_suffix(".times").write_bytes(b"".join(struct.pack("<Qd", *each) for each in times))
    return log


@settings(max_examples=60)
@given(st.binary(max_size=60).map(lambda data: data.replace(b"\r", b"\n")), st.integers(0, 8))
def test_the_tail_is_the_last_lines(tmp_path_factory: pytest.TempPathFactory, data: bytes, count: int) -> None:
    log = written(tmp_path_factory.mktemp("log"), data)
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1].removesuffix(b"\n")
    lines = [line for line in lines if line]
    assert shown(log, LogQuery(tail_lines=count)) == b"".join(lines[len(lines) - min(count, len(lines)) :])


def test_a_tail_that_is_longer_than_a_block_is_whole(tmp_path: Path) -> None:
    lines = [f"{number:0100d}\n".encode() for number in range(3000)]
    log = written(tmp_path, b"".join(lines))
    assert shown(log, LogQuery(tail_lines=2500)) == b"".join(lines[500:])
    assert shown(log, LogQuery()) == b"".join(lines)


@pytest.mark.parametrize(
    ("since", "expected"),
    [(0.0, b"a\nb\nc\nd\n"), (100.0, b"a\nb\nc\nd\n"), (101.0, b"b\nc\nd\n"), (200.5, b"d\n"), (400.0, b"")],
)
def test_since_shows_what_was_written_from_then_on(tmp_path: Path, since: float, expected: bytes) -> None:
    log = written(tmp_path, b"a\nb\nc\nd\n", (2, 100.0), (6, 200.0), (8, 300.0))
    assert shown(log, LogQuery(since=since)) == expected


def test_lines_carry_the_time_at_which_they_were_seen(tmp_path: Path) -> None:
    log = written(tmp_path, b"a\nb\nc", (2, 100.25), (5, 200.5))
    assert shown(log, LogQuery(timestamps=True)).decode().splitlines() == [
        "1970-01-01T00:01:40.250000000Z a",
        "1970-01-01T00:03:20.500000000Z b",
        "1970-01-01T00:03:20.500000000Z c",
    ]


def test_a_limit_of_bytes_counts_what_is_shown(tmp_path: Path) -> None:
    log = written(tmp_path, b"abc\ndef\n", (8, 100.0))
    assert shown(log, LogQuery(limit_bytes=5)) == b"abc\nd"
    assert shown(log, LogQuery(limit_bytes=5, timestamps=True)) == b"1970-"
    assert shown(log, LogQuery(limit_bytes=0)) == b""
    long = written(tmp_path, b"x" * 200_000)
    assert len(shown(long, LogQuery(limit_bytes=150_000))) == 150_000


def test_following_shows_what_comes_and_ends_when_the_container_has_ended(tmp_path: Path) -> None:
    log = written(tmp_path, b"a\n")
    looks = iter([True, True, False])

    def goes_on() -> bool:
        more = next(looks, False)
        with log.open("ab") as file:
            file.write(b"more\n" if more else b"")
        return more

    assert shown(log, LogQuery(follow=True), goes_on) == b"a\nmore\nmore\n"


def test_the_keeper_notes_growth_once_and_goes_on_where_it_was(tmp_path: Path) -> None:
    log = written(tmp_path, b"a\n")
    first = LogKeeper()
    first.add(log)
    first.remove(log)
    size = log.with_suffix(".times").stat().st_size
    second = LogKeeper()
    second.add(log)
    second.remove(log)
    assert log.with_suffix(".times").stat().st_size == size == 16


def test_a_termination_message_is_the_end_of_the_log(tmp_path: Path) -> None:
    assert tail_message(written(tmp_path, b"x\ny\n")) == "x\ny\n"
    many = b"".join(f"{number}\n".encode() for number in range(1000))
    assert len(tail_message(written(tmp_path, many)).splitlines()) == 80
    assert len(tail_message(written(tmp_path, b"z" * 10_000))) == 2048
    assert tail_message(tmp_path / "none") == ""


def test_the_query_of_kubectl_is_read() -> None:
    query = log_query(
        {"follow": "true", "timestamps": "true", "tailLines": "5", "sinceSeconds": "60", "limitBytes": "9"}, 1000.0
    )
    assert query == LogQuery(True, True, 5, 940.0, 9)
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert log_query({"sinceTime": "2026-01-01T00:00:00Z"}, 0).since == moment.timestamp()
    assert log_query({}, 0) == LogQuery()
    with pytest.raises(ValueError, match="invalid literal"):
        log_query({"tailLines": "x"}, 0)


def test_a_certificate_s_name_is_its_common_name() -> None:
    subject = ((("organizationName", "system:masters"),), (("commonName", "api"),))
    assert common_name({"subject": subject}) == "api"
    assert common_name({}) == ""


def test_a_long_log_loses_its_beginning_while_it_is_written_to(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    lines = [f"{number:099d}\n".encode() for number in range(3000)]
    with log.open("ab", buffering=0) as writer:
        writer.write(b"".join(lines[:2900]))
        forget_beginning(log, log.stat().st_size, most=200_000, kept=100_000)
        writer.write(b"".join(lines[2900:]))
    kept = shown(log, LogQuery()).splitlines(keepends=True)
    assert kept == lines[-len(kept) :] and 1000 <= len(kept) <= 1160
    assert log.stat().st_blocks * 512 < 150_000
    assert shown(log, LogQuery(tail_lines=2000)) == b"".join(kept)
    assert shown(log, LogQuery(tail_lines=1)) == lines[-1]


def test_a_log_within_its_bound_stays_whole(tmp_path: Path) -> None:
    log = written(tmp_path, b"x\n" * 50_000)
    forget_beginning(log, 100_000, most=100_000, kept=50_000)
    assert shown(log, LogQuery()) == b"x\n" * 50_000
