"""Informers of the pod network: NetworkPolicies, namespaces, Services and pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from sandpool.api.conditions import READY, TRUE, find_condition
from sandpool.api.kinds import NAMESPACE, NETWORK_POLICY, POD, SERVICE
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.node.network.cluster_dns import DnsPod, DnsService, resolve
from sandpool.node.network.enforcer import Enforcer


class NetworkInformers:
    """The caches that a pod network reads. Run ``run`` as a task; ``synced`` waits for the first lists."""

    def __init__(self, client: Client, clock: Clock, rng: Random, node: str) -> None:
        self.policies: Cache[Object] = Cache(_restrictions, name="network policies")
        self.namespaces: Cache[Object] = Cache(_identity, name="namespaces")
        self.services = Cache(_service, name="services with a name")
        self.pods = Cache(_pod, name="pods with a name")
        mine = f"spec.nodeName={node}"
        self._reflectors: list[Reflector[Any]] = [
            Reflector(client, NETWORK_POLICY, self.policies, clock, rng),
            Reflector(client, NAMESPACE, self.namespaces, clock, rng),
            Reflector(client, SERVICE, self.services, clock, rng),
            Reflector(client, POD, self.pods, clock, rng, field_selector=mine),
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name=f"{reflector.type.plural} for the network")

    async def synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()

    def report_labels(self, enforcer: Enforcer) -> None:
        """Report label changes of pods to the enforcer: an adoption by a claim changes labels."""

        def changed(key: Key, old: tuple[str, DnsPod] | None, new: tuple[str, DnsPod] | None) -> None:
            if new is not None:
                enforcer.relabel(new[0], dict(new[1].labels))

        enforcer.labels_of = self._labels_of
        self.pods.subscribe(changed, on_change_of=lambda pod: pod[1].labels)

    def _labels_of(self, uid: str, key: Key) -> Mapping[str, str] | None:
        pod = self.pods.get(key)
        return dict(pod[1].labels) if pod is not None and pod[0] == uid else None

    def resolve(self, name: str) -> list[str] | None:
        """Resolve a DNS name of the cluster, as ``cluster_dns.resolve`` does."""
        pods = (pod for _, pod in self.pods if pod.address)
        return resolve(name, lambda namespace, service: self.services.get(Key(namespace, service)), pods)


def _restrictions(policy: Object) -> Object:
    metadata = policy["metadata"]
    return {
        "metadata": {"namespace": metadata["namespace"], "name": metadata["name"]},
        "spec": policy.get("spec") or {},
    }


def _identity(obj: Object) -> Object:
    metadata = obj["metadata"]
    return {"metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}}}


def _service(service: Object) -> DnsService:
    metadata, spec = service["metadata"], service.get("spec") or {}
    return DnsService(
        metadata["namespace"],
        metadata["name"],
        spec.get("selector") or {},
        bool(spec.get("publishNotReadyAddresses")),
    )


def _pod(pod: SharedObject) -> tuple[str, DnsPod]:
    """Return the UID and the DNS view of a pod."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    ready = find_condition(status.get("conditions") or [], READY)
    named = DnsPod(
        metadata["namespace"],
        metadata["name"],
        status.get("podIP") or "",
        metadata.get("labels") or {},
        ready is not None and ready.get("status") == TRUE,
        spec.get("hostname") or "",
        spec.get("subdomain") or "",
    )
    return metadata["uid"], named
