"""Allocation of pod addresses from a network.

A released address is reused as late as possible: a client may still hold a connection, a DNS answer or a route to it,
and must not end up in the sandbox of a stranger.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv4Address, IPv4Network


class NoAddressAvailable(Exception):
    """Every address of the network is allocated."""


class AddressPool:
    """The addresses of ``network`` without the first ``reserved`` and the last one, which are the node's own."""

    def __init__(self, network: IPv4Network, reserved: int = 8) -> None:
        self.network = network
        self._next = int(network.network_address) + reserved  # from here on no address was ever allocated
        self._end = int(network.broadcast_address)
        self._allocated: set[int] = set()
        self._released: OrderedDict[int, None] = OrderedDict()  # the longest unused first; all lower than _next

    def allocate(self) -> IPv4Address:
        while self._next < self._end:
            address = self._next
            self._next += 1
            if address not in self._allocated:  # otherwise it was reserved
                return self._mark_allocated(address)
        if not self._released:
            raise NoAddressAvailable(f"all addresses of {self.network} are in use; choose a larger network for pods")
        return self._mark_allocated(self._released.popitem(last=False)[0])

    def reserve(self, address: IPv4Address) -> None:
        """Allocate this address: a pod from before a restart has it."""
        if address not in self.network:
            raise ValueError(f"{address} is not in {self.network}")
        self._released.pop(int(address), None)
        self._allocated.add(int(address))

    def release(self, address: IPv4Address) -> None:
        number = int(address)
        if number in self._allocated:
            self._allocated.remove(number)
            if number < self._next:
                self._released[number] = None

    def _mark_allocated(self, address: int) -> IPv4Address:
        self._allocated.add(address)
        return IPv4Address(address)
