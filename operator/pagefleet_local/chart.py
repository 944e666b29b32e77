"""The chart that the fleet installs: the source checkout's, or the one that the installed package carries."""

from pathlib import Path
from typing import Any

from pagefleet_local.errors import FleetError

_PACKAGE = Path(__file__).parent


def chart_folder() -> Path:
    """Return the folder of the chart."""
    places = (_PACKAGE.parent.parent / "charts" / "pagefleet", _PACKAGE / "chart")
    for place in places:
        if (place / "Chart.yaml").exists():
            return place
    raise FleetError(f"no chart in {' or '.join(str(place) for place in places)}; install pagefleet anew")


def chart_values() -> dict[str, Any]:
    """Return what one machine's fleet sets: its operator looks after every namespace."""
    return {"settings": {"scope": "Cluster"}}
