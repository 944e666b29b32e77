"""What the operator shows over HTTP."""

import asyncio
import json

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_contract.listening import base_url, bound_socket
from pagefleet_contract.names import PATH_LIVE, PATH_METRICS, PATH_READY
from pagefleet_contract.operator_metrics import OPERATOR_METRICS
from pagefleet_operator.cache import ServiceKey
from pagefleet_operator.health import Health, HealthServer
from pagefleet_operator.metrics import Metrics


def _answers(health: Health, page: bytes = b"") -> dict[str, tuple[int, str]]:
    async def run() -> dict[str, tuple[int, str]]:
        listener = bound_socket("127.0.0.1", 0)
        server = HealthServer(lambda: health, lambda: page)
        await server.start(listener)
        try:
            async with httpx2.AsyncClient(base_url=base_url(listener), trust_env=False) as client:
                found = {path: await client.get(path) for path in (PATH_LIVE, PATH_READY, PATH_METRICS)}
            return {path: (answer.status_code, answer.text) for path, answer in found.items()}
        finally:
            await server.close()

    return asyncio.run(run())


def test_a_healthy_operator_answers_200_to_both() -> None:
    answers = _answers(Health())
    assert (answers[PATH_LIVE][0], answers[PATH_READY][0]) == (200, 200)


def test_one_that_is_not_ready_says_why_and_is_not_restarted() -> None:
    answers = _answers(Health(unready_because="the CRD is missing"))
    assert answers[PATH_LIVE][0] == 200
    assert answers[PATH_READY][0] == 503
    assert json.loads(answers[PATH_READY][1]) == {"status": "failing", "reason": "the CRD is missing"}


def test_one_that_is_dead_is_neither_live_nor_ready() -> None:
    answers = _answers(Health(dead_because="no echo"))
    assert (answers[PATH_LIVE][0], answers[PATH_READY][0]) == (503, 503)


def test_every_metric_of_the_contract_is_shown_and_no_other() -> None:
    metrics = Metrics()
    metrics.reconciles.labels("done").inc()
    metrics.applies.labels("Deployment", "done").inc()
    metrics.figures_reads.labels("done").inc()
    families = list(text_string_to_metric_families(metrics.page().decode()))
    kinds = {family.name: family.type for family in families}
    assert kinds == {metric.name.removesuffix("_total"): metric.kind for metric in OPERATOR_METRICS}
    series = {sample.name for family in families for sample in family.samples}
    assert not [name for name in series if name.endswith("_created")]


def test_services_are_counted_by_condition_until_they_are_gone() -> None:
    metrics = Metrics()
    for name, ready in (("a", "True"), ("b", "False"), ("c", "False")):
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        metrics.take_status(ServiceKey("prod", name, f"uid-{name}"), status)
    metrics.forget(ServiceKey("prod", "c", "uid-c"))
    lines = metrics.page().decode().splitlines()
    assert 'pagefleet_operator_services{condition="Ready",status="True"} 1.0' in lines
    assert 'pagefleet_operator_services{condition="Ready",status="False"} 1.0' in lines
