"""What names mean inside a sandbox: Services and the pods behind them, as cluster DNS has them.

A Service's name is the addresses of its ready pods. There are no virtual addresses here that something would have to
forward from; a client that resolves the name is at the pod at once, for headless Services and others alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

DOMAIN: Final = "cluster.local"


@dataclass(frozen=True, slots=True)
class DnsPod:
    """``hostname`` and ``subdomain`` are of the pod's spec."""

    namespace: str
    name: str
    address: str
    labels: Mapping[str, str]
    ready: bool
    hostname: str = ""
    subdomain: str = ""


@dataclass(frozen=True, slots=True)
class DnsService:
    namespace: str
    name: str
    selector: Mapping[str, str]
    publishes_not_ready: bool = False


class OutsideClusterDomain(Exception):
    """The name is not in the cluster's domain: somebody else may know it."""


def search_domains(namespace: str) -> list[str]:
    return [f"{namespace}.svc.{DOMAIN}", f"svc.{DOMAIN}", DOMAIN]


def resolve(name: str, find: Callable[[str, str], DnsService | None], pods: Iterable[DnsPod]) -> list[str] | None:
    """The addresses of a name; None if there is no such name, which differs from a name without addresses. ``find``
    is given the namespace and the name of a Service."""
    match _inside(name):
        case [service, namespace, "svc"]:
            return _addresses(find(namespace, service), pods)
        case [host, service, namespace, "svc"]:
            behind = _behind(find(namespace, service), pods)
            if behind is None:
                return None
            named = [pod.address for pod in behind if host in (_hostname(pod, service), pod.address.replace(".", "-"))]
            return named or None
        case [dashed, namespace, "pod"]:
            address = dashed.replace("-", ".")
            return [address] if any(pod.address == address and pod.namespace == namespace for pod in pods) else None
        case _:
            return None


def _inside(name: str) -> list[str]:
    lowered = name.lower().rstrip(".")
    if lowered != DOMAIN and not lowered.endswith(f".{DOMAIN}"):
        raise OutsideClusterDomain(name)
    return lowered.removesuffix(DOMAIN).rstrip(".").split(".")


def _addresses(service: DnsService | None, pods: Iterable[DnsPod]) -> list[str] | None:
    behind = _behind(service, pods)
    return None if behind is None else [pod.address for pod in behind]


def _behind(service: DnsService | None, pods: Iterable[DnsPod]) -> list[DnsPod] | None:
    if service is None:
        return None
    if not service.selector:
        return []
    return [
        pod
        for pod in pods
        if pod.namespace == service.namespace
        and (pod.ready or service.publishes_not_ready)
        and service.selector.items() <= pod.labels.items()
    ]


def _hostname(pod: DnsPod, service: str) -> str:
    """A pod has a name of its own below a Service if its spec says so."""
    return pod.hostname if pod.subdomain == service else ""
