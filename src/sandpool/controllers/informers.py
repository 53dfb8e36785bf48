"""Shared informer caches: one cache per type with its indexes, and the reflectors that feed them.

A process holds each object once, however many controllers read it, and all controllers see a write of one of them at
once. Every lookup by something other than the name has an index, so no reconcile walks a cache.

To set up a controller: create ``Caches``, subscribe the watches, start ``InformerSet.run`` as a task, await
``InformerSet.synced``, then run. A reconcile with incomplete caches would create objects that exist already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, TypeVar

from sandpool.api import labels
from sandpool.api.kinds import (
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SERVICE,
)
from sandpool.api.names import name_hash
from sandpool.api.resource import Key, ResourceType, SharedObject, shared_key
from sandpool.api.views import (
    ClaimView,
    NamespaceView,
    NetworkPolicyView,
    NodeView,
    PodView,
    SandboxView,
    ServiceView,
    TemplateView,
    View,
    VolumeClaimView,
    WarmPoolView,
    claim_view,
    pod_view,
    sandbox_view,
)
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache, reads
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client

# Names of indexes. All but the owner's are scoped to a namespace.
_OWNER: Final = "owner"
_POOL: Final = "pool"
_TEMPLATE: Final = "template"
_POD: Final = "pod"
_HASH: Final = "hash"
_NAMESPACE: Final = "namespace"

V = TypeVar("V", bound=View)


class Caches:
    """One cache per type, and lookups by index. ``caches[type]`` is the cache of a type.

    Arguments ``namespace`` and name belong to the object that is asked about: the pool, the template or the sandbox.
    """

    def __init__(self) -> None:
        self._by_type: dict[ResourceType, Cache[Any]] = {}
        self.sandboxes = self._add(SANDBOX, sandbox_view)
        self.pods = self._add(POD, pod_view)
        self.claims = self._add(SANDBOX_CLAIM, claim_view)
        self.pools = self._add(SANDBOX_WARM_POOL, WarmPoolView.from_object)
        self.templates = self._add(SANDBOX_TEMPLATE, TemplateView.from_object)
        self.services = self._add(SERVICE, ServiceView.from_object)
        self.volume_claims = self._add(PERSISTENT_VOLUME_CLAIM, VolumeClaimView.from_object)
        self.network_policies = self._add(NETWORK_POLICY, NetworkPolicyView.from_object)
        # Not in ``_by_type``: these are cluster-scoped, and the controllers work without permission to read them.
        self.nodes: Cache[NodeView] = Cache(NodeView.from_object, name=NODE.plural)
        self.namespaces: Cache[NamespaceView] = Cache(NamespaceView.from_object, name=NAMESPACE.plural)

        self.sandboxes.add_index(_OWNER, _owner)
        self.sandboxes.add_index(_POOL, _pool_label)
        self.sandboxes.add_index(_POD, _other_pod)
        self.pods.add_index(_OWNER, _owner)
        self.claims.add_index(_POOL, _pool_of)
        self.pools.add_index(_TEMPLATE, _template_of)
        self.templates.add_index(_HASH, _hash_of)
        self.pools.add_index(_NAMESPACE, _namespace_of)

    def __getitem__(self, type: ResourceType) -> Cache[Any]:
        return self._by_type[type]

    def __iter__(self) -> Iterator[tuple[ResourceType, Cache[Any]]]:
        return iter(self._by_type.items())

    def owned_sandboxes(self, owner_uid: str) -> tuple[SandboxView, ...]:
        """Sandboxes controlled by the pool or claim with this UID."""
        return self.sandboxes.by_index(_OWNER, owner_uid)

    def pool_sandboxes(self, namespace: str, pool: str) -> tuple[SandboxView, ...]:
        """Sandboxes with the label of a pool, whatever their owner: members, orphans, and those that others have
        labelled."""
        return self.sandboxes.by_index(_POOL, (namespace, name_hash(pool)))

    def sandboxes_naming(self, namespace: str, pod: str) -> tuple[SandboxView, ...]:
        """Sandboxes whose annotation names a pod of another name than their own."""
        return self.sandboxes.by_index(_POD, (namespace, pod))

    def owned_pods(self, sandbox_uid: str) -> tuple[PodView, ...]:
        """Pods controlled by the sandbox with this UID."""
        return self.pods.by_index(_OWNER, sandbox_uid)

    def pod_of(self, sandbox: SandboxView) -> PodView | None:
        """The pod that a sandbox controls; None if there is none or more than one."""
        owned = self.owned_pods(sandbox.uid)
        return owned[0] if len(owned) == 1 else None

    def pool_claims(self, namespace: str, pool: str) -> tuple[ClaimView, ...]:
        """Claims that refer to a pool."""
        return self.claims.by_index(_POOL, (namespace, pool))

    def template_pools(self, namespace: str, template: str) -> tuple[WarmPoolView, ...]:
        """Pools that refer to a template."""
        return self.pools.by_index(_TEMPLATE, (namespace, template))

    def templates_hashed(self, namespace: str, ref_hash: str) -> tuple[TemplateView, ...]:
        """Templates whose names have this hash, as in the label of a sandbox: one, as a rule."""
        return self.templates.by_index(_HASH, (namespace, ref_hash))

    def namespace_pools(self, namespace: str) -> tuple[WarmPoolView, ...]:
        """Pools of a namespace."""
        return self.pools.by_index(_NAMESPACE, namespace)

    def _add(self, type: ResourceType, project: Callable[[SharedObject], V]) -> Cache[V]:
        cache = self._by_type[type] = Cache(project, name=type.plural)
        return cache


class InformerSet:
    """Keeps caches up to date with an API, in one namespace or all. ``labelled`` restricts pods and Services to those
    with the label of a sandbox, since a large cluster has many others.

    Nodes and Namespaces are cluster-scoped, and reading them is a permission that not every installation grants.
    Without it the reflectors retry from time to time, all nodes count as healthy, and no namespace has limits of its
    own. ``synced`` does not wait for nodes, and for Namespaces only until the first attempt: claims that are served
    before would not be held to the limits.
    """

    def __init__(
        self,
        caches: Caches,
        client: Client,
        clock: Clock,
        rng: Random,
        *,
        namespace: str | None = None,
        labelled: bool = False,
    ) -> None:
        self.caches = caches
        self.reflectors = tuple(
            Reflector(
                client,
                type,
                cache,
                clock,
                rng,
                namespace=namespace,
                label_selector=labels.SANDBOX_NAME_HASH if labelled and type in (POD, SERVICE) else "",
            )
            for type, cache in caches
        )
        self.nodes = Reflector(client, NODE, caches.nodes, clock, rng)
        only = f"metadata.name={namespace}" if namespace else ""
        self.namespaces = Reflector(client, NAMESPACE, caches.namespaces, clock, rng, field_selector=only)

    async def run(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in (*self.reflectors, self.nodes, self.namespaces):
                group.create_task(reflector.run(), name=f"reflector of {reflector.type}")

    async def synced(self) -> None:
        """Wait until the caches contain everything that existed."""
        for reflector in self.reflectors:
            await reflector.synced.wait()
        await self.namespaces.attempted.wait()


def key_of(view: View) -> Key:
    """The key of a view in its cache."""
    return shared_key(view.namespace, view.name)


@reads("owner")
def _owner(view: View) -> tuple[str, ...]:
    return () if view.owner is None else (view.owner.uid,)


@reads("annotations")
def _other_pod(sandbox: SandboxView) -> tuple[tuple[str, str], ...]:
    return ((sandbox.namespace, sandbox.pod_name),) if sandbox.pod_name != sandbox.name else ()


@reads("labels")
def _pool_label(sandbox: SandboxView) -> tuple[tuple[str, str], ...]:
    found = sandbox.labels.get(labels.WARM_POOL)
    return ((sandbox.namespace, found),) if found else ()


@reads("warm_pool")
def _pool_of(claim: ClaimView) -> tuple[tuple[str, str], ...]:
    return ((claim.namespace, claim.warm_pool),)


@reads("template")
def _template_of(pool: WarmPoolView) -> tuple[tuple[str, str], ...]:
    return ((pool.namespace, pool.template),)


@reads("name")
def _hash_of(template: TemplateView) -> tuple[tuple[str, str], ...]:
    return ((template.namespace, name_hash(template.name)),)


@reads("namespace")
def _namespace_of(pool: WarmPoolView) -> tuple[str, ...]:
    return (pool.namespace,)
