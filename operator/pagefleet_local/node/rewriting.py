"""Where a pod's words meet this machine: mount paths become folders, names of Services become their addresses.

Both are replaced only where they stand as a whole: `/pagefleet/model.bin` holds no mount `/pagefleet/model`, and a path
within a URL (`http://host/pagefleet/live`) is the server's, unless the URL is a `file://` one.
"""

import re
from collections.abc import Callable, Mapping

from pagefleet_contract.names import MOUNT_ROOT

_SERVICE = re.compile(r"(?<![\w.-])([a-z0-9][a-z0-9-]*)\.([a-z0-9][a-z0-9-]*)\.svc(?:\.cluster\.local)?\b\.?(?![\w-])")

# From a Service's namespace and name to its address, or to nothing where there is none.
AddressOf = Callable[[str, str], str | None]


def under_mount_root(path: str) -> bool:
    return path == MOUNT_ROOT or path.startswith(f"{MOUNT_ROOT}/")


def with_folders(text: str, folders: Mapping[str, str]) -> str:
    """Return the text with each mount path (a key) replaced by the folder that stands for it."""
    if MOUNT_ROOT not in text or not folders:
        return text
    longest_first = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    pattern = rf"(?:(?<![\w./-])|(?<=file://)|(?<=file:))({longest_first})(?![\w.-])"
    return re.sub(pattern, lambda match: folders[match[1]], text)


def with_addresses(text: str, address_of: AddressOf) -> str:
    """Return the text with `NAME.NAMESPACE.svc` replaced by the address of that Service, where it has one."""
    if ".svc" not in text:
        return text
    return _SERVICE.sub(lambda match: address_of(match[2], match[1]) or match[0], text)
