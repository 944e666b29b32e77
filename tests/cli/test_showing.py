"""What the command prints of services, and when it says that one is ready."""

import json
import shlex
from typing import Any

import pytest
import yaml

from pagefleet_cli.console import Console
from pagefleet_cli.printing import as_json, as_names, as_table, as_yaml, changed_lines
from pagefleet_cli.readiness import readiness
from pagefleet_cli.services import check_devices, curl, what_is_left
from pagefleet_local.errors import FleetError

TABLE = {
    "columnDefinitions": [{"name": "Name"}, {"name": "Ready", "priority": 0}, {"name": "Reason", "priority": 1}],
    "rows": [
        {"cells": ["chat", "True", "Serving"], "object": {"metadata": {"namespace": "default"}}},
        {"cells": ["a-longer-name", None, None], "object": {"metadata": {"namespace": "prod"}}},
    ],
}


def service(
    *conditions: tuple[str, str, str], generation: int = 2, num_ready: int = 1, num_older: int = 0, **spec: Any
) -> dict[str, Any]:
    """A service with one replica whose conditions are of generation 2; all replicas that are ready are there, and
    `num_older` of them run an older spec."""
    return {
        "metadata": {"name": "chat", "namespace": "default", "generation": generation, "managedFields": [{}]},
        "spec": {"model": {"uri": "simulated://x"}, "replicas": 1, **spec},
        "status": {
            "replicas": num_ready,
            "updatedReplicas": num_ready - num_older,
            "readyReplicas": num_ready,
            "conditions": [
                {"type": kind, "status": status, "reason": "Reason", "message": message, "observedGeneration": 2}
                for kind, status, message in conditions
            ],
        },
    }


def test_a_table_is_aligned_and_shows_wide_columns_only_when_asked() -> None:
    assert as_table(TABLE, wide=False, with_namespace=False).splitlines() == [
        "NAME            READY",
        "chat            True",
        "a-longer-name",
    ]
    assert as_table(TABLE, wide=True, with_namespace=True).splitlines() == [
        "NAMESPACE   NAME            READY   REASON",
        "default     chat            True    Serving",
        "prod        a-longer-name",
    ]


def _table(**ready: str) -> dict[str, Any]:
    """A table of services, each with an age that nobody asks for."""
    columns = [{"name": "Name", "type": "string"}, {"name": "Ready", "type": "string"}, {"name": "Age", "type": "date"}]
    places = {name: {"metadata": {"namespace": "default", "name": name}} for name in ready}
    rows = [{"cells": [name, told, f"{len(told)}s"], "object": places[name]} for name, told in ready.items()]
    return {"columnDefinitions": columns, "rows": rows}


def test_watching_shows_each_row_again_when_more_than_its_age_has_changed() -> None:
    older = _table(chat="0/1")
    older["rows"][0]["cells"][2] = "99s"
    seen = [_table(), _table(chat="0/1"), older, _table(chat="1/1", other="0/2"), _table(other="0/2"), _table()]
    lines = [line.split() for line in changed_lines(seen, wide=False, with_namespace=False)]
    assert lines == [
        ["NAME", "READY", "AGE"],
        ["chat", "0/1", "3s"],
        ["chat", "1/1", "3s"],
        ["other", "0/2", "3s"],
        ["default/chat", "is", "gone"],
        ["default/other", "is", "gone"],
    ]


def test_objects_are_shown_without_the_bookkeeping_of_apply() -> None:
    found = {"apiVersion": "v1", "kind": "List", "items": [service(), service()]}
    for shown in (json.loads(as_json(found)), yaml.safe_load(as_yaml(found))):
        assert [sorted(each["metadata"]) for each in shown["items"]] == [["generation", "name", "namespace"]] * 2
    assert as_names(found) == "chat\nchat" and as_names(service()) == "chat"


@pytest.mark.parametrize(
    ("found", "is_ready", "refused", "text"),
    [
        (service(), False, False, "the operator hasn't looked at it yet"),
        (service(("Ready", "False", "0 of 1 ready")), False, False, "Reason: 0 of 1 ready"),
        (service(("Ready", "True", "")), True, False, "Reason"),
        (service(("Ready", "False", "no pods"), ("ModelFits", "False", "80 GB")), False, True, "Reason: 80 GB"),
        (service(("Ready", "True", ""), ("ModelFits", "Unknown", "")), True, False, "Reason"),
        (service(("Ready", "True", ""), replicas=1, num_ready=0), False, False, "0 of 1 replica is ready"),
        (service(("Ready", "True", ""), replicas=3, num_ready=2), False, False, "2 of 3 replicas are ready"),
        (
            service(("Ready", "True", ""), ("Progressing", "True", "no GPU is free"), replicas=3, num_ready=2),
            False,
            False,
            "no GPU is free",
        ),
        (
            service(("Ready", "True", ""), ("Progressing", "True", "1 older one left"), num_ready=2, num_older=1),
            False,
            False,
            "1 older one left",
        ),
        (service(("Ready", "False", "replicas is 0"), replicas=0, num_ready=0), True, False, "Reason: replicas is 0"),
        (
            service(("Ready", "False", "replicas is 0"), ("Progressing", "True", "1 left"), replicas=0, num_ready=1),
            False,
            False,
            "1 left",
        ),
        # What was said of another spec says nothing of this one.
        (service(("Ready", "True", ""), generation=3), False, False, "the operator hasn't looked at it yet"),
        (service(("ModelFits", "False", ""), generation=3), False, False, "the operator hasn't looked at it yet"),
    ],
)
def test_a_service_is_ready_by_the_conditions_of_its_newest_spec(
    found: dict[str, Any], is_ready: bool, refused: bool, text: str
) -> None:
    judged = readiness(found)
    assert (judged.is_ready, judged.refused, judged.text) == (is_ready, refused, text)


def test_the_curl_names_the_model_and_a_key_where_one_is_needed() -> None:
    assert '"model": "chat"' in curl("http://x", service()) and "API_KEY" not in curl("http://x", service())
    named = service(tenancy={"apiKeysSecret": "keys"})
    named["spec"]["model"]["servedName"] = "llama"
    assert '"model": "llama"' in curl("http://x", named) and "Bearer $API_KEY" in curl("http://x", named)


def test_a_name_with_quotes_does_not_end_the_text_that_a_shell_is_given() -> None:
    named = service()
    named["spec"]["model"]["servedName"] = "it's; echo $HOME 'x"
    assert json.loads(shlex.split(curl("http://x", named))[-1])["model"] == "it's; echo $HOME 'x"


def test_what_somebody_else_wrote_gives_the_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"cells": ["chat", "für 😀\x1b[2J\u009b31m\u202e", None], "object": {"metadata": {}}}
    assert as_table(TABLE | {"rows": [row]}, wide=False, with_namespace=False).endswith(r"für 😀\x1b[2J\x9b31m\u202e")
    Console().done("chat: \x1b[2J\nnext")
    assert capsys.readouterr().err == "chat: \\x1b[2J\nnext\n"


def test_what_holds_a_deleted_service_is_named() -> None:
    def held(name: str, *finalizers: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "finalizers": [*finalizers]}}

    assert what_is_left(None, [held("chat-engine-1")]) == "1 pod left"
    assert what_is_left(held("chat"), []) == "0 pods left"
    assert what_is_left(held("chat", "a.example/keep", "b.example/bill"), [held("chat-engine-1", "c.example/log")]) == (
        "the InferenceService chat is held by the finalizers a.example/keep, b.example/bill; the pod chat-engine-1 is"
        " held by the finalizers c.example/log, which go when what has set them takes them away"
    )


def test_a_played_model_on_devices_that_the_machine_lacks_is_told_how_to_pretend() -> None:
    played = service(replicas=2, accelerator={"resource": "nvidia.com/gpu", "count": 4})
    nodes = [{"status": {"allocatable": {"cpu": "2", "nvidia.com/gpu": "6"}}}]
    with pytest.raises(FleetError, match=r"asks for 8 of nvidia\.com/gpu, and .* offers 6; .* --pretend nvidia"):
        check_devices(played, nodes)
    enough = [{"status": {"allocatable": {"nvidia.com/gpu": "8"}}}]
    check_devices(played, enough)
    check_devices(service(accelerator={"resource": "cpu", "count": 4}), nodes)
    check_devices(service(model={"uri": "hf://a/b"}, accelerator=played["spec"]["accelerator"]), [])
