"""Which addresses a node gives to its pods, if nobody says: a range that the machine does not use for anything else.

The choice is kept, because pods that run on keep their addresses.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from sandpool.node.network.netns import NetworkNamespace

#: In the order in which they are tried. Several nodes on one machine have one each.
RANGES: Final = tuple(IPv4Network(f"10.{second}.0.0/16") for second in range(231, 247))

_CHOSEN: Final = "addresses"
_ROUTES: Final = Path("/proc/thread-self/net/route")


class NoPodCidrAvailable(Exception):
    """The machine has a route for each of them, or for the one that is wanted."""


def choose(directory: Path, host: Path | None) -> IPv4Network:
    """The range of the node with this directory. ``host`` is the machine's network namespace, if not ours."""
    kept = directory / _CHOSEN
    if kept.exists():
        return IPv4Network(kept.read_text().strip())
    taken = _taken(host)
    for candidate in RANGES:
        if not any(candidate.overlaps(network) for network, _ in taken):
            directory.mkdir(parents=True, exist_ok=True)
            kept.write_text(f"{candidate}\n")
            return candidate
    raise NoPodCidrAvailable(f"this machine uses all of {RANGES[0]} to {RANGES[-1]}; choose a range with --pod-cidr")


def check(wanted: IPv4Network, host: Path | None, own: str) -> None:
    """Raise ``NoPodCidrAvailable`` if the machine routes part of the requested range to another interface.

    ``own`` is the interface through which the machine reaches pods. A wider route may lead elsewhere: the pods' own
    route is more specific and takes precedence."""
    for network, interface in _taken(host):
        if network.subnet_of(wanted) and interface != own:
            raise NoPodCidrAvailable(
                f"this machine reaches {network} through {interface}; choose another range than {wanted}"
            )


def _taken(host: Path | None) -> list[tuple[IPv4Network, str]]:
    return _routes() if host is None else NetworkNamespace(host).call(_routes)


def _routes() -> list[tuple[IPv4Network, str]]:
    """Of the namespace this thread is in, with their interfaces, less the default route."""
    found: list[tuple[IPv4Network, str]] = []
    for line in _ROUTES.read_text().splitlines()[1:]:
        fields = line.split()
        destination, mask = (IPv4Address(int(fields[column], 16).to_bytes(4, "little")) for column in (1, 7))
        if int(mask):
            found.append((IPv4Network(f"{destination}/{mask}"), fields[0]))
    return found
