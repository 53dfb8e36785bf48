"""The default range of pod addresses (pod CIDR) of a node: one that the machine does not use otherwise.

The choice is stored, because pods that outlive the agent keep their addresses.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from sandpool.node.network.netns import NetworkNamespace

#: Candidates in the order of preference. Several nodes on one machine have one each.
CANDIDATES: Final = tuple(IPv4Network(f"10.{second}.0.0/16") for second in range(231, 247))

_STORED: Final = "addresses"
_ROUTES: Final = Path("/proc/thread-self/net/route")


class NoPodCidrAvailable(Exception):
    """The machine has a route for every candidate, or for the requested range."""


def choose_pod_cidr(directory: Path, host: Path | None) -> IPv4Network:
    """Return the stored range of the node with this directory, or choose and store one. ``host`` is the machine's
    network namespace, if it is not that of this process."""
    stored = directory / _STORED
    if stored.exists():
        return IPv4Network(stored.read_text().strip())
    taken = _routes_of(host)
    for candidate in CANDIDATES:
        if not any(candidate.overlaps(network) for network, _ in taken):
            directory.mkdir(parents=True, exist_ok=True)
            stored.touch(mode=0o600)
            stored.write_text(f"{candidate}\n")
            return candidate
    bounds = f"{CANDIDATES[0]} to {CANDIDATES[-1]}"
    raise NoPodCidrAvailable(f"this machine uses all of {bounds}; choose a range with --pod-cidr")


def check_pod_cidr(requested: IPv4Network, host: Path | None, own: str) -> None:
    """Raise ``NoPodCidrAvailable`` if the machine routes part of the requested range to another interface.

    ``own`` is the interface through which the machine reaches pods. A wider route may lead elsewhere: the pods' own
    route is more specific and takes precedence."""
    for network, interface in _routes_of(host):
        if network.subnet_of(requested) and interface != own:
            raise NoPodCidrAvailable(
                f"this machine reaches {network} through {interface}; choose another range than {requested}"
            )


def _routes_of(host: Path | None) -> list[tuple[IPv4Network, str]]:
    return _routes() if host is None else NetworkNamespace(host).call(_routes)


def _routes() -> list[tuple[IPv4Network, str]]:
    """The routes of this thread's namespace with their interfaces, without the default route."""
    found: list[tuple[IPv4Network, str]] = []
    for line in _ROUTES.read_text().splitlines()[1:]:
        fields = line.split()
        destination, mask = (IPv4Address(int(fields[column], 16).to_bytes(4, "little")) for column in (1, 7))
        if int(mask):
            found.append((IPv4Network(f"{destination}/{mask}"), fields[0]))
    return found
