"""Each pod's own loopback address: taken from a range, kept as long as the pod lives."""

import ipaddress
from collections.abc import Iterable


class AddressesUsedUp(Exception):
    pass


class Addresses:
    """The addresses of one range that are in use. The first and the last one of it are left alone."""

    def __init__(self, address_range: str) -> None:
        self._range = ipaddress.ip_network(address_range)
        if not self._range.is_loopback:
            raise ValueError(f"the address range is {address_range}; it must lie in 127.0.0.0/8")
        self._used: set[int] = set()
        self._next = 1

    def keep(self, addresses: Iterable[str]) -> None:
        self._used |= {self._index(address) for address in addresses}

    def take(self, wanted: str | None = None) -> str:
        """Return an address that no pod has: the wanted one if it can be, else one that rested the longest."""
        if wanted and ipaddress.ip_address(wanted) in self._range and self._index(wanted) not in self._used:
            self._used.add(self._index(wanted))
            return wanted
        last = self._range.num_addresses - 1
        for step in range(last - 1):
            index = (self._next - 1 + step) % (last - 1) + 1
            if index not in self._used:
                self._used.add(index)
                self._next = index + 1
                return str(self._range[index])
        raise AddressesUsedUp(f"all {last - 1} addresses of {self._range} are in use; give the node a larger range")

    def give_back(self, address: str) -> None:
        self._used.discard(self._index(address))

    def _index(self, address: str) -> int:
        return int(ipaddress.ip_address(address)) - int(self._range.network_address)
