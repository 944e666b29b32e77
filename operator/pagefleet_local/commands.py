"""kubectl and Helm as this fleet calls them: with its kubeconfig, and without a trace among the user's files."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pagefleet_local.errors import FleetError
from pagefleet_local.tools import HELM, KUBECTL

OPERATOR_NAMESPACE = "pagefleet-system"
RELEASE = "pagefleet"
_TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Commands:
    tools: Mapping[str, Path]
    kubeconfig: Path
    folder: Path  # caches of both programs

    def install_chart(self, chart: Path, values: Mapping[str, Any], timeout_seconds: int) -> None:
        """Install the chart or bring it up to date, and return when its pods are ready."""
        # What a command that was broken off left would refuse every later one.
        pending = f"owner=helm,name={RELEASE},status in (pending-install,pending-upgrade,pending-rollback)"
        self.kubectl(
            "delete", "secret", f"--namespace={OPERATOR_NAMESPACE}", "--ignore-not-found", f"--selector={pending}"
        )
        file = self.folder / "values.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
        named = (f"--namespace={OPERATOR_NAMESPACE}", "--create-namespace", f"--values={file}")
        try:
            self.helm("upgrade", "--install", RELEASE, str(chart), *named, "--wait", f"--timeout={timeout_seconds}s")
        except FleetError as error:
            logs = f"kubectl --kubeconfig {self.kubeconfig} logs --namespace {OPERATOR_NAMESPACE} deployment/{RELEASE}"
            raise FleetError(f"{error}; if the operator doesn't become ready, `{logs}` says why") from error

    def apply(self, files: Sequence[str]) -> list[dict[str, Any]]:
        """Apply the files as `kubectl apply --server-side` does, and return the objects as the cluster holds them.

        Raises after the last with what is said against each file, which kubectl doesn't always name."""
        applied: list[dict[str, Any]] = []
        faults: list[str] = []
        for file in files:
            try:
                applied += self._apply(file)
            except FleetError as error:
                faults.append(f"{file}: {error}")
        if faults:
            raise FleetError("\n".join(faults))
        return applied

    def _apply(self, file: str) -> list[dict[str, Any]]:
        said = self.kubectl("apply", "--server-side", "--force-conflicts", "--output=json", f"--filename={file}")
        found: dict[str, Any] = json.loads(said)
        return list(found["items"]) if found["kind"] == "List" else [found]

    def node_renewed(self, node: str) -> datetime | None:
        """Return when the node last said that it is there. Its Ready condition outlives it by most of a minute."""
        query = ("get", "lease", node, "--namespace=kube-node-lease", "--ignore-not-found")
        said = self.kubectl(*query, "--output=jsonpath={.spec.renewTime}")
        return datetime.fromisoformat(said) if said else None

    def kubectl(self, *arguments: str) -> str:
        return self._run([KUBECTL, *arguments])

    def helm(self, *arguments: str) -> str:
        return self._run([HELM, *arguments])

    def _run(self, command: Sequence[str]) -> str:
        program, *arguments = command
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBERC": "off",
            "KUBECACHEDIR": str(self.folder / "kubectl"),
            "HELM_CACHE_HOME": str(self.folder / "helm"),
            "HELM_CONFIG_HOME": str(self.folder / "helm"),
            "HELM_DATA_HOME": str(self.folder / "helm"),
        }
        try:
            done = subprocess.run(
                [self.tools[program], *arguments],
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                timeout=_TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            said = f"`{program} {' '.join(arguments)}` has not ended after {_TIMEOUT_SECONDS} s"
            raise FleetError(f"{said}; is the fleet's control plane well? `pagefleet up` looks after it") from error
        if done.returncode != 0:
            raise FleetError(_one_line(program, done.stderr or done.stdout))
        return done.stdout


def _one_line(program: str, said: str) -> str:
    lines = [line.strip().removeprefix("Error: ").removeprefix("error: ") for line in said.splitlines() if line.strip()]
    return f"{program}: {'; '.join(lines) or 'failed and said nothing'}"
