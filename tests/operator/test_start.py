"""How the operator starts, and what it says where it can't."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from pagefleet_contract.names import ENV_POD_NAME, ENV_POD_NAMESPACE
from pagefleet_contract.settings import OperatorSettings
from pagefleet_operator.main import StartRefused, identity_from, log_formatter, read_root_key, read_settings
from pagefleet_operator.program import namespaces_of


def test_settings_come_from_the_file_and_an_empty_one_means_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("")
    assert read_settings(file) == OperatorSettings()
    file.write_text("workers: 3\nwatchNamespaces: [a, b]\n")
    assert read_settings(file).workers == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("workers: 0", "workers: Input should be greater than or equal to 1"),
        ("workerz: 1", "workerz: Extra inputs are not permitted; did you mean workers?"),
        ("{", "is no YAML"),
        ("scope: Cluster\nwatchNamespaces: [a]", "give one or the other"),
    ],
)
def test_settings_that_are_wrong_are_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    with pytest.raises(StartRefused, match=message):
        read_settings(file)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match=r"--settings .*: No such file"):
        read_settings(tmp_path / "none")
    with pytest.raises(StartRefused, match=r"--root-key-file .*: No such file"):
        read_root_key(tmp_path / "none")


def test_a_root_key_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("short\n")
    with pytest.raises(StartRefused, match="holds 5 bytes; at least 16 are needed"):
        read_root_key(file)
    file.write_text("0123456789abcdef\n")
    assert read_root_key(file) == b"0123456789abcdef"


def test_the_lease_is_held_under_the_pods_name() -> None:
    identity = identity_from({ENV_POD_NAME: "op-1", ENV_POD_NAMESPACE: "system"})
    assert (identity.pod_name, identity.namespace) == ("op-1", "system")
    with pytest.raises(StartRefused, match=f"{ENV_POD_NAME} and {ENV_POD_NAMESPACE} must be set"):
        identity_from({})


def test_namespaces_are_the_named_ones_or_the_own_one_or_all() -> None:
    assert namespaces_of(OperatorSettings(), "system") == ("system",)
    assert namespaces_of(OperatorSettings(watch_namespaces=["a", "b"]), "system") == ("a", "b")
    assert namespaces_of(OperatorSettings(scope="Cluster"), "system") is None


def test_the_log_is_one_json_object_a_line_with_utc_times() -> None:
    record = logging.LogRecord("pagefleet_operator.x", logging.WARNING, __file__, 1, "it is %s", ("so",), None)
    record.service = "chat"
    line = json.loads(log_formatter().format(record))
    assert line.items() >= {
        "level": "WARNING", "logger": "pagefleet_operator.x", "message": "it is so", "service": "chat"
    }.items()  # fmt: skip
    assert line["time"].endswith("+00:00")


def test_a_start_that_is_refused_ends_with_two_and_one_line() -> None:
    command = [sys.executable, "-m", "pagefleet_operator", "--settings", "/nowhere", "--root-key-file", "/nowhere"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines() == [
        "pagefleet-operator: --settings /nowhere: No such file or directory; give the file that the chart mounts"
    ]
