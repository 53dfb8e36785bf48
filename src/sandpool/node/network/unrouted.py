"""What the networks have in common that connect nobody: a pod has an address of a loopback interface, its place.

Who is where is kept under a directory, so that the next process finds it.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, Generic, TypeVar

from sandpool.node.network.address_pool import Addresses, NoAddressAvailable
from sandpool.node.pods.interfaces import NetworkFailure

#: The type of the condition that says that pods are alone.
ISOLATED: Final = "SandboxNetworkUnavailable"

#: Addresses of pods that are.
LOOPBACK: Final = IPv4Network("127.231.0.0/16")

THIS_HOST: Final = "127.0.0.1"

P = TypeVar("P")


class UnroutedNetwork(ABC, Generic[P]):
    """``weaknesses`` are what a pod lacks here."""

    nameservers: tuple[str, ...] = ()
    host_addresses: tuple[str, ...] = (THIS_HOST,)

    def __init__(self, directory: Path, addresses: IPv4Network, weaknesses: dict[str, str]) -> None:
        self.directory = directory
        self.weaknesses = weaknesses
        self.addresses = Addresses(addresses)
        self._places: dict[str, P] = {}  # by UID of the pod

    @abstractmethod
    async def detach(self, uid: str) -> None: ...

    async def attached(self) -> set[str]:
        return set(self._places)

    async def stop(self, *, keep: bool = False) -> None:
        if not keep:
            for uid in list(self._places):
                await self.detach(uid)
            shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def _new_address(self) -> Iterator[IPv4Address]:
        """One that is given back if the pod cannot be given its place. Raises ``NetworkFailure``."""
        try:
            address = self.addresses.take()
        except NoAddressAvailable as error:
            raise refused(error) from error
        try:
            yield address
        except BaseException:
            self.addresses.give_back(address)
            raise


def refused(error: Exception) -> NetworkFailure:
    return NetworkFailure(f"the pod could not be given its place in the network: {error}")
