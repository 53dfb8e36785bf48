"""Which addresses of a network are taken.

An address that was given back is used again as late as possible: somebody may still hold a connection, a DNS answer or
a route to it, and must not end up in a stranger's sandbox.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv4Address, IPv4Network


class NoAddressAvailable(Exception):
    """Every address of the network is taken."""


class Addresses:
    """The addresses of ``network``, less the first ``reserved`` and the last one, which are for the node itself."""

    def __init__(self, network: IPv4Network, reserved: int = 8) -> None:
        self.network = network
        self._next = int(network.network_address) + reserved  # never given out so far: this one and those behind it
        self._end = int(network.broadcast_address)
        self._taken: set[int] = set()
        self._returned: OrderedDict[int, None] = OrderedDict()  # longest unused first; all of them before _next

    def take(self) -> IPv4Address:
        while self._next < self._end:
            address = self._next
            self._next += 1
            if address not in self._taken:  # else it was kept
                return self._given(address)
        if not self._returned:
            raise NoAddressAvailable(f"all addresses of {self.network} are in use; choose a larger network for pods")
        return self._given(self._returned.popitem(last=False)[0])

    def keep(self, address: IPv4Address) -> None:
        """Take this one: a pod from before a restart has it."""
        if address not in self.network:
            raise ValueError(f"{address} is not in {self.network}")
        self._returned.pop(int(address), None)
        self._taken.add(int(address))

    def give_back(self, address: IPv4Address) -> None:
        number = int(address)
        if number in self._taken:
            self._taken.remove(number)
            if number < self._next:
                self._returned[number] = None

    def _given(self, address: int) -> IPv4Address:
        self._taken.add(address)
        return IPv4Address(address)
