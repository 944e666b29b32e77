"""How pip's settings get into an image's build."""

import configparser
from pathlib import Path

from tests.cluster.pip_settings import PipSettings, parse_pip_settings

_LISTED = """\
:env:.cert='/ca/from-environment.pem'
:env:.no-input='1'
global.cert='/ca/from-file.pem'
global.index-url='https://pypi.example/simple'
install.find-links='/wheels'
install.user='true'
"""


def test_only_what_says_how_to_reach_the_registry_is_taken_and_the_environment_wins() -> None:
    settings = parse_pip_settings(_LISTED, {}, lambda path: True)

    assert settings.values == {
        "index-url": "https://pypi.example/simple",
        "find-links": "/wheels",
        "cert": "/ca/from-environment.pem",
    }


def test_a_file_that_is_not_there_is_left_out() -> None:
    settings = parse_pip_settings(_LISTED, {}, lambda path: path != "/wheels")

    assert "find-links" not in settings.values


def test_the_systems_authority_is_used_where_pip_has_none() -> None:
    assert parse_pip_settings("", {"SSL_CERT_FILE": "/ca.pem"}, lambda path: True).values == {"cert": "/ca.pem"}
    assert parse_pip_settings("", {}, lambda path: True).values == {}


def test_the_configuration_and_the_files_that_it_names_are_mounted(tmp_path: Path) -> None:
    mounts = PipSettings({"cert": "/ca.pem", "index-url": "https://pypi.example/simple"}).mounts(tmp_path)

    assert mounts == [f"{tmp_path}/pip.conf:/etc/pip.conf", "/ca.pem:/ca.pem"]
    written = configparser.RawConfigParser()
    written.read(tmp_path / "pip.conf")
    assert dict(written["global"]) == {"cert": "/ca.pem", "index-url": "https://pypi.example/simple"}


def test_a_machine_without_settings_mounts_nothing(tmp_path: Path) -> None:
    assert PipSettings({}).mounts(tmp_path) == []
