"""What the fleet on one machine tells its user: one sentence with what was found, expected, and to be done."""


class FleetError(Exception):
    """The user can do something about it; the command prints it in one line and ends with 1."""
