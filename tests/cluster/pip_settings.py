"""How pip reaches its registry on this machine, handed to a build by mounts: the Dockerfiles stay free of it."""

import ast
import configparser
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

# What a machine's administrator sets so that pip works at all; nothing about where or how it installs.
_NETWORK = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "cert",
    "client-cert",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
)
_AUTHORITY_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True, slots=True)
class PipSettings:
    values: Mapping[str, str]

    def mounts(self, folder: Path) -> list[str]:
        """Write pip's configuration into `folder` and return SOURCE:TARGET of it and of the files that it names."""
        if not self.values:
            return []
        parser = configparser.RawConfigParser()
        parser["global"] = dict(self.values)
        written = folder / "pip.conf"
        with written.open("w") as file:
            parser.write(file)
        named = sorted({part for value in self.values.values() for part in value.split() if part.startswith("/")})
        return [f"{written}:/etc/pip.conf", *(f"{path}:{path}" for path in named)]


def find_pip_settings(python: str, environment: Mapping[str, str]) -> PipSettings:
    """Ask that Python's pip."""
    listed = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True, env=dict(environment)
    ).stdout
    return parse_pip_settings(listed, environment, lambda path: Path(path).exists())


def parse_pip_settings(listed: str, environment: Mapping[str, str], exists: Callable[[str], bool]) -> PipSettings:
    """Read `pip config list`: lines like global.cert='/file'. What the environment says comes later and wins."""
    values: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        key, separator, quoted = line.partition("=")
        section, _, name = key.rpartition(".")
        if separator and section in ("global", "install", ":env:") and name in _NETWORK:
            values[name] = str(ast.literal_eval(quoted))
    if authority := next((environment[name] for name in _AUTHORITY_VARIABLES if environment.get(name)), None):
        values.setdefault("cert", authority)
    # A file that is named and isn't there helps nobody; pip only warns.
    return PipSettings({name: value for name, value in values.items() if not value.startswith("/") or exists(value)})
