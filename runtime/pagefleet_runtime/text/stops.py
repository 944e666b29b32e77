"""Stop strings: which text may be shown, which may yet become a stop, and where the first stop is."""


def checked_stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return a request's stop strings. Raises RequestRefused (400, param `stop`) for more than 4 or an empty one."""
    raise NotImplementedError
