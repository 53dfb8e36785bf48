"""Base of the networks without routing: a pod has an address on a loopback interface.

A directory records the attached pods, so that the next agent finds them.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, Generic, TypeVar

from sandpool.node.network.address_pool import AddressPool, NoAddressAvailable
from sandpool.node.pods.interfaces import NetworkFailure

#: The type of the node condition for isolated pods.
ISOLATED: Final = "SandboxNetworkUnavailable"

#: The addresses of isolated pods.
LOOPBACK: Final = IPv4Network("127.231.0.0/16")

THIS_HOST: Final = "127.0.0.1"

P = TypeVar("P")


class UnroutedNetwork(ABC, Generic[P]):
    """``weaknesses`` are node conditions for what pods lack in this network: type -> message."""

    nameservers: tuple[str, ...] = ()
    host_addresses: tuple[str, ...] = (THIS_HOST,)

    def __init__(self, directory: Path, addresses: IPv4Network, weaknesses: dict[str, str]) -> None:
        self.directory = directory
        self.weaknesses = weaknesses
        self.addresses = AddressPool(addresses)
        self._attached: dict[str, P] = {}  # by pod UID

    @abstractmethod
    async def detach(self, uid: str) -> None: ...

    async def attached(self) -> set[str]:
        return set(self._attached)

    async def stop(self, *, keep: bool = False) -> None:
        if not keep:
            for uid in list(self._attached):
                await self.detach(uid)
            shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def _new_address(self) -> Iterator[IPv4Address]:
        """Allocate an address, and release it if the block raises. Raises ``NetworkFailure``."""
        try:
            address = self.addresses.allocate()
        except NoAddressAvailable as error:
            raise refused(error) from error
        try:
            yield address
        except BaseException:
            self.addresses.release(address)
            raise


def refused(error: Exception) -> NetworkFailure:
    return NetworkFailure(f"cannot set up the pod's network: {error}")
