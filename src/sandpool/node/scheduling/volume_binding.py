"""Finds the volumes of pods that have claims, and so the nodes that can run them. Pods without claims are not affected.

The data of a claim is where its volume is, and the pod can run nowhere else. A claim that is not bound yet gets its
volume soon, from a node that does not know the pod; until then the pod must not be bound to another node. Only if a
storage class makes volumes for pods that are already bound (``WaitForFirstConsumer``) is the pod bound first. Our own
provisioner makes volumes at once, whatever the binding mode in our class says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Final

import orjson

from sandpool.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from sandpool.api.resource import Key, Object
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.node.volumes.provisioner import PROVISIONER

_UNBOUND: Final = "pod has unbound immediate PersistentVolumeClaims"
_LATER: Final = "WaitForFirstConsumer"
_BY_VOLUME: Final = "volume"


@dataclass(frozen=True, slots=True)
class VolumeClaimView:
    """``volume`` is the name of its volume once the claim is bound. A node that received a pod earlier would try, fail
    and back off."""

    key: Key
    volume: str
    lost: bool
    deleting: bool
    storage_class: str

    @classmethod
    def from_object(cls, claim: Object) -> VolumeClaimView:
        metadata, spec = claim["metadata"], claim["spec"]
        phase = (claim.get("status") or {}).get("phase")
        return cls(
            Key.of(claim),
            spec.get("volumeName") or "" if phase in ("Bound", "Lost") else "",
            phase == "Lost",
            bool(metadata.get("deletionTimestamp")),
            spec.get("storageClassName") or "",
        )


@dataclass(frozen=True, slots=True)
class VolumeTopology:
    """``selector`` selects the nodes that can reach a volume, as JSON; an empty one selects all."""

    volume: str
    selector: bytes

    @property
    def terms(self) -> Object:
        return _terms(self.selector)

    @classmethod
    def from_object(cls, volume: Object) -> VolumeTopology:
        required = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
        return cls(volume["metadata"]["name"], orjson.dumps(required, option=orjson.OPT_SORT_KEYS))


@lru_cache(maxsize=1024)
def _terms(selector: bytes) -> Object:
    found: Object = orjson.loads(selector)
    return found


class VolumeBindings:
    """``changed`` is called with every claim whose binding or volume may have changed."""

    def __init__(self, client: Client, clock: Clock, rng: Random, changed: Callable[[Key], None]) -> None:
        self.changed = changed
        self.claims = Cache(VolumeClaimView.from_object, name="claims of pods to be bound")
        self.volumes = Cache(VolumeTopology.from_object, name="volumes of pods to be bound")
        # Storage classes that make a volume when a pod is bound.
        self.wait_for_consumer: Cache[bool] = Cache(_makes_later, name="storage classes")
        self.claims.add_index(_BY_VOLUME, lambda claim: (claim.volume,) if claim.volume else ())
        self.reflectors: list[Reflector[Any]] = [
            Reflector(client, STORAGE_CLASS, self.wait_for_consumer, clock, rng),
            Reflector(client, PERSISTENT_VOLUME, self.volumes, clock, rng),
            Reflector(client, PERSISTENT_VOLUME_CLAIM, self.claims, clock, rng),
        ]

    def start(self) -> None:
        self.claims.subscribe(lambda key, old, new: self.changed(key))
        self.volumes.subscribe(lambda key, old, new: self._notify(self.claims.by_index(_BY_VOLUME, key.name)))
        self.wait_for_consumer.subscribe(lambda key, old, new: self._notify(self.claims))

    def _notify(self, claims: Iterable[VolumeClaimView]) -> None:
        for claim in list(claims):
            self.changed(claim.key)

    def topologies(self, claims: tuple[Key, ...]) -> tuple[VolumeTopology, ...] | str:
        """Return the volumes that a pod must be near to, or why they are not known yet, in kube-scheduler's words."""
        found: list[VolumeTopology] = []
        for key in claims:
            claim = self.claims.get(key)
            if claim is None:
                return f'persistentvolumeclaim "{key.name}" not found'
            if claim.deleting:
                return f'persistentvolumeclaim "{key.name}" is being deleted'
            volume = self.volumes.get(Key("", claim.volume))
            if volume is not None and not claim.lost:
                found.append(volume)
            elif claim.volume:
                return f'persistentvolumeclaim "{key.name}" bound to non-existent persistentvolume "{claim.volume}"'
            elif not self.wait_for_consumer.get(Key("", claim.storage_class)):
                return _UNBOUND
        return tuple(found)


def _makes_later(storage_class: Object) -> bool:
    return storage_class.get("volumeBindingMode") == _LATER and storage_class.get("provisioner") != PROVISIONER
