"""Which paths go to the replicas: a list of what may pass, so that nothing else can be reached through the router."""

import urllib.parse

# Beside everything under /v1/.
_FORWARDED = frozenset({"/tokenize", "/detokenize", "/version", "/openapi.json"})
_FORWARDED_BELOW = "/v1/"


def forwarded_path(raw_path: bytes) -> str | None:
    """Return the decoded path if it may be forwarded as it stands, else None.

    Empty, `.` and `..` segments and backslashes are refused, encoded or not: another reader might resolve them.
    """
    try:
        path = urllib.parse.unquote(raw_path.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        return None
    if path in _FORWARDED:
        return path
    if not path.startswith(_FORWARDED_BELOW) or not path.isprintable() or "\\" in path:
        return None
    segments = path.removeprefix(_FORWARDED_BELOW).split("/")
    return None if any(segment in ("", ".", "..") for segment in segments) else path
