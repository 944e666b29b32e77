"""The fleet on one machine as steps: control plane, node, chart, services; each may be repeated, and is then quick.

Nothing here is special to one machine but the first two: the operator comes from the chart, services by kubectl apply.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pagefleet_contract.names import KIND
from pagefleet_contract.settings import Images
from pagefleet_local.binaries import find_binaries
from pagefleet_local.chart import chart_folder, chart_values
from pagefleet_local.commands import Commands
from pagefleet_local.control_plane import PROGRAMS, ControlPlane, Network
from pagefleet_local.errors import FleetError
from pagefleet_local.fleet_folder import FleetFolder
from pagefleet_local.locks import locked
from pagefleet_local.manifest_files import manifest_files
from pagefleet_local.node_process import NODE, STOP_GRACE_SECONDS, NodeSettings, end_pods, node_program
from pagefleet_local.ports import kept_ports
from pagefleet_local.processes import Processes
from pagefleet_local.reporting import Reporter
from pagefleet_local.tools import find_tools
from pagefleet_local.waiting import attempts

_NODE_SECONDS = 60
_OPERATOR_SECONDS = 180
_NODE_STOP_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Fleet:
    """One fleet: `up` brings it up to date with the files, `down` stops it and keeps what it is."""

    folder: FleetFolder
    cache: Path
    environment: Mapping[str, str]
    reporter: Reporter

    def up(
        self, files: Sequence[str], binaries: Path | None = None, pretended: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Start what doesn't run, apply the files and return the services in them.

        `pretended` are resources (NAME=COUNT) that the node offers without a device; absent, those of the last time.
        """
        manifests = manifest_files(files)
        with locked(self.folder.lock, self.reporter.doing):
            tools = find_tools(self.cache, self.reporter.doing)
            plane = self._control_plane(find_binaries(binaries, self.environment, self.cache, self.reporter.doing))
            commands = Commands(tools, self.folder.kubeconfig, self.folder.tools)
            with self._step("control plane"):
                plane.start()
            if pretended is not None:
                self.folder.pretend(pretended)
            with self._step("node"):
                self._start_node(plane, commands)
            with self._step("operator"):
                commands.install_chart(chart_folder(), chart_values(), _OPERATOR_SECONDS)
        if not files:
            return []
        with self._step(f"applied {', '.join(files)}"):
            return [found for found in commands.apply(manifests) if found["kind"] == KIND]

    def down(self) -> list[str]:
        """Stop everything and return the names of what ran; data, keys and ports stay."""
        with locked(self.folder.lock, self.reporter.doing):
            processes = Processes(self.folder.path)
            ran = [name for name in (NODE, *PROGRAMS) if processes.find(name)]
            if self.folder.pods.exists():  # pods outlive a node, a killed one too
                self.reporter.doing(f"stopping node and pods, {STOP_GRACE_SECONDS} s at most")
                processes.stop(NODE, _NODE_STOP_SECONDS)
                end_pods(self.folder.pods)
            if ran:
                self.reporter.doing("stopping the control plane")
                self._control_plane({}).stop()
            return ran

    def commands(self) -> Commands:
        """Return kubectl and Helm for this fleet."""
        return Commands(find_tools(self.cache, self.reporter.doing), self.folder.kubeconfig, self.folder.tools)

    def _control_plane(self, binaries: Mapping[str, Path]) -> ControlPlane:
        network = Network(service_range=self.folder.decisions().service_range)
        return ControlPlane(self.folder.path, binaries, network)

    def _start_node(self, plane: ControlPlane, commands: Commands) -> None:
        processes, decisions = Processes(self.folder.path), self.folder.decisions()
        running, images = processes.find(NODE), Images()
        settings = NodeSettings(
            name=decisions.node_name,
            folder=self.folder.pods,
            port=kept_ports(self.folder.ports, {"logs": running is None})["logs"],
            pod_range=decisions.pod_range,
            cache=self.cache,
            pretended=decisions.pretended,
            images=(images.engine, images.light),
        )
        program = node_program(settings, plane)
        if running and running.command != tuple(program.command):
            processes.stop(NODE, _NODE_STOP_SECONDS)  # the next one adopts its pods
            running = None
        self.folder.pods.mkdir(exist_ok=True, mode=0o700)
        began = datetime.min.replace(tzinfo=UTC) if running else datetime.now(UTC)
        processes.start(program)
        for _ in attempts(_NODE_SECONDS, 0.2):
            if processes.find(NODE) is None:
                last = processes.tail_of(NODE, 1) or "it wrote nothing"
                raise FleetError(f"the node ended at its start: {last}; its log is {processes.log_of(NODE)}")
            if (renewed := commands.node_renewed(decisions.node_name)) and renewed >= began:
                return
        raise FleetError(f"the node is not ready after {_NODE_SECONDS} s; its log is {processes.log_of(NODE)}")

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        self.reporter.doing(what)
        began = time.monotonic()
        yield
        self.reporter.done(f"{what} ({time.monotonic() - began:.1f} s)")
