"""Cluster DNS names: Services and the pods behind them.

The name of a Service resolves to the addresses of its ready pods, for headless Services and others alike. There are no
virtual addresses that need forwarding: a client connects to the pod directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

DOMAIN: Final = "cluster.local"


@dataclass(frozen=True, slots=True)
class DnsPod:
    """``hostname`` and ``subdomain`` are those of the pod's spec."""

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
    """The name is not in the cluster's domain: a name server outside may know it."""


def resolve(name: str, find: Callable[[str, str], DnsService | None], pods: Iterable[DnsPod]) -> list[str] | None:
    """Return the addresses of a name; None if the name does not exist, which differs from a name without addresses.

    ``find`` looks up a Service by namespace and name. Raises ``OutsideClusterDomain``."""
    match _labels_in_domain(name):
        case [service, namespace, "svc"]:
            return _addresses(find(namespace, service), pods)
        case [host, service, namespace, "svc"]:
            selected = _pods_of(find(namespace, service), pods)
            if selected is None:
                return None
            named = [
                pod.address for pod in selected if host in (_hostname(pod, service), pod.address.replace(".", "-"))
            ]
            return named or None
        case [dashed, namespace, "pod"]:
            address = dashed.replace("-", ".")
            return [address] if any(pod.address == address and pod.namespace == namespace for pod in pods) else None
        case _:
            return None


def _labels_in_domain(name: str) -> list[str]:
    lowered = name.lower().rstrip(".")
    if lowered != DOMAIN and not lowered.endswith(f".{DOMAIN}"):
        raise OutsideClusterDomain(name)
    return lowered.removesuffix(DOMAIN).rstrip(".").split(".")


def _addresses(service: DnsService | None, pods: Iterable[DnsPod]) -> list[str] | None:
    selected = _pods_of(service, pods)
    return None if selected is None else [pod.address for pod in selected]


def _pods_of(service: DnsService | None, pods: Iterable[DnsPod]) -> list[DnsPod] | None:
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
    """The pod's own name below a Service, if its spec has that Service as subdomain."""
    return pod.hostname if pod.subdomain == service else ""
