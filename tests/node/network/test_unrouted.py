from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from sandpool.api.resource import Object
from sandpool.node.network.isolated import IsolatedNetwork
from sandpool.node.network.netns import NetworkNamespace
from sandpool.node.network.unrouted import UnroutedNetwork
from sandpool.node.pods.interfaces import NetworkFailure

POD: Object = {"metadata": {"uid": "1"}}


class Seats(UnroutedNetwork[str]):
    """An unrouted network with three addresses."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, IPv4Network("127.9.0.0/28"), {})
        directory.mkdir()

    def sit(self, uid: str, *, broken: bool = False) -> None:
        with self._new_address() as address:
            if broken:
                raise OSError("broken")
            self._attached[uid] = str(address)
            (self.directory / uid).touch()

    async def detach(self, uid: str) -> None:
        del self._attached[uid]
        (self.directory / uid).unlink()


async def test_stop_releases_all_addresses_unless_they_are_kept(tmp_path: Path) -> None:
    seats = Seats(tmp_path / "seats")
    for uid in "ab":
        seats.sit(uid)
    await seats.stop(keep=True)
    assert await seats.attached() == {"a", "b"}
    await seats.stop()
    assert await seats.attached() == set()
    assert not seats.directory.exists()


def test_address_is_allocated_only_to_an_attached_pod(tmp_path: Path) -> None:
    seats = Seats(tmp_path / "seats")
    for _ in range(20):
        with pytest.raises(OSError, match="broken"):
            seats.sit("a", broken=True)
    with pytest.raises(NetworkFailure, match="cannot set up the pod"):
        for number in range(20):
            seats.sit(str(number))
    assert len(seats._attached) > 1


async def test_failed_namespace_releases_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*about: object) -> None:
        raise OSError("no more namespaces")

    network = IsolatedNetwork(tmp_path / "network", "")
    taken = network.addresses._allocated.copy()
    monkeypatch.setattr(NetworkNamespace, "make", fail)
    with pytest.raises(NetworkFailure, match="no more namespaces"):
        await network.attach(POD)
    assert network.addresses._allocated == taken
    assert await network.attached() == set()
