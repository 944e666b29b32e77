"""Helm as the chart's tests use it: values in, objects out."""

import copy
import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pagefleet_local.folders import cache_folder
from pagefleet_local.tools import find_tools

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/pagefleet"
Object = dict[str, Any]


@functools.cache
def tools() -> dict[str, Path]:
    return find_tools(cache_folder(os.environ), print)


def helm(*arguments: str | Path, kubeconfig: Path | None = None, fails: bool = False, given: str | None = None) -> str:
    """Run helm; return what it printed, both streams. `fails` says that it has to end with an error."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": os.defpath, "KUBECONFIG": str(kubeconfig or Path(home) / "none")}
        done = subprocess.run(
            [tools()["helm"], *map(str, arguments)],
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    said = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, said
    return said


def render(values: Mapping[str, Any] | None = None, *, chart: Path = CHART, release: str = "pagefleet") -> list[Object]:
    """Return the objects of a release in the namespace `prod`."""
    given = json.dumps(values or {})
    text = helm("template", release, chart, "--namespace", "prod", "--values", "-", given=given)
    return [loaded for loaded in yaml.safe_load_all(text) if loaded]


def refused(values: Mapping[str, Any]) -> str:
    """Return what helm says to values that it has to refuse."""
    return helm("template", "pagefleet", CHART, "--values", "-", given=json.dumps(values), fails=True)


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def operator_pod(objects: list[Object]) -> Object:
    (deployment,) = of_kind(objects, "Deployment")
    template: Object = deployment["spec"]["template"]
    return template


def pods(objects: list[Object]) -> Iterator[Object]:
    """Yield every pod, and every template of pods, as a Pod."""
    for each in objects:
        template = each if each["kind"] == "Pod" else each.get("spec", {}).get("template")
        if template is not None and "containers" in template["spec"]:
            name = each["metadata"]["name"]
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}


def put(values: Object, path: str, value: Any) -> Object:
    """Return the values with one more, by its dotted path."""
    found = copy.deepcopy(values)
    *parents, last = path.split(".")
    section = found
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = value
    return found
