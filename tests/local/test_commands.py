"""kubectl as the fleet calls it, played by a script."""

from pathlib import Path

import pytest

from pagefleet_local.commands import Commands
from pagefleet_local.errors import FleetError
from pagefleet_local.tools import KUBECTL

# As kubectl does for a server-side apply: what the server refuses is said without the file.
_PLAYED = """#!/bin/sh
case "$*" in
  *bad*) echo 'Error from server: .spec.replicas: expected numeric, got string' >&2; exit 1 ;;
  *) echo '{"kind": "InferenceService"}'; echo "$*" >> "$(dirname "$0")/applied" ;;
esac
"""


def test_what_the_server_refuses_is_said_with_its_file_and_the_other_files_are_applied(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text(_PLAYED)
    program.chmod(0o755)
    commands = Commands({KUBECTL: program}, tmp_path / "kubeconfig", tmp_path)
    assert commands.apply(["a.yaml", "b.yaml"]) == [{"kind": "InferenceService"}] * 2
    with pytest.raises(FleetError) as said:
        commands.apply(["bad.yaml", "c.yaml", "bad.json"])
    told = "kubectl: Error from server: .spec.replicas: expected numeric, got string"
    assert str(said.value).splitlines() == [f"bad.yaml: {told}", f"bad.json: {told}"]
    assert (tmp_path / "applied").read_text().count("c.yaml") == 1
