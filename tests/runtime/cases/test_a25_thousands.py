"""A25: thousands of tiny requests at once, with no more than 1,024 files: all are answered, and health stays quick."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from pagefleet_contract.names import PATH_LIVE, PATH_METRICS
from tests.runtime.cases import probes
from tests.runtime.cases.rig import Rig, answers_of, some_ids
from tests.runtime.cases.wire import Reply, address, post_at_once

HEALTH_SECONDS = 1.0
MEMORY_LEFT = 64 * 2**20


@contextmanager
def probed(rig: Rig, path: str, every_seconds: float, timeout: float) -> Iterator[None]:
    """Probe a path from another process; fail where an answer was late or wrong."""
    where = (*map(str, address(rig.server)), path, str(every_seconds), str(timeout))
    program = subprocess.Popen(
        [sys.executable, "-I", probes.__file__, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program:
        yield
        found = [line.split() for line in program.communicate()[0].splitlines()]
    assert found and all(status == "200" for status, _ in found), (path, found)


def at_once(rig: Rig, bodies: list[dict[str, Any]]) -> list[Reply]:
    """Send all at the same moment, each on a connection of its own; check that each was answered."""
    with probed(rig, PATH_LIVE, 1.0, HEALTH_SECONDS), probed(rig, PATH_METRICS, 5.0, 10.0):
        replies = post_at_once(rig.server, bodies)
    statuses = Counter(reply.status for reply in replies)
    assert set(statuses) <= {200, 429, 503} and statuses[200] > 0, statuses
    assert all(int(reply.headers["retry-after"]) > 0 for reply in replies if reply.status != 200)
    assert all(reply.json()["error"]["code"] for reply in replies if reply.status != 200)
    return replies


def thousands(rig: Rig, num_small: int, num_equal: int) -> None:
    process, engine = psutil.Process(rig.server.process.pid), rig.server.engine
    small = [rig.body(some_ids(f"a25 {number}", 3), 1) for number in range(num_small)]
    post_at_once(rig.server, small[:50])
    files, memory = process.num_fds(), process.memory_info().rss
    for body, reply in zip(small, at_once(rig, small), strict=True):
        if reply.status == 200:
            (answer,) = answers_of(reply.json())
            rig.reference.check_greedy(body["prompt"], answer.ids)
    check_equal_prompts(rig, num_equal)
    assert rig.complete(some_ids("a25 last", 1), 1).counts == (1, 1, 2)
    rig.server.wait_until(lambda: process.num_fds() <= files)
    assert process.memory_info().rss - memory < MEMORY_LEFT
    assert rig.server.engine == engine, "the engine was started anew"


def check_equal_prompts(rig: Rig, count: int) -> None:
    prompt = some_ids("a25 equal", 64)
    before = rig.snapshot()["computedTokens"]
    replies = [reply for reply in at_once(rig, [rig.body(prompt, 2)] * count) if reply.status == 200]
    answers = [answer for reply in replies for answer in answers_of(reply.json())]
    assert len({answer.ids for answer in answers}) == 1
    rig.check_greedy(prompt, answers[0])
    # One computes the prompt; the others its last token, and each its answer's.
    assert sorted({answer.cached for answer in answers}) == [0, 63]
    assert [answer.cached for answer in answers].count(0) == 1
    assert rig.snapshot()["computedTokens"] - before == 64 + (len(answers) - 1) + len(answers)


def test_a25_hundreds_at_once_are_answered_and_health_is_quick(rig: Rig) -> None:
    # More than the files that the server may open.
    thousands(rig, 1200, 100)


@pytest.mark.long
def test_a25_thousands_at_once_are_answered_and_health_is_quick(rig: Rig) -> None:
    thousands(rig, 3000, 1000)
