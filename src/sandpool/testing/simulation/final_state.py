"""Invariants of the quiescent world, computed from the API's objects alone.

No object is left behind, every pool is full, every claim that can be served has a sandbox, and every status is correct.
The rules are written here a second time, from the API reference and independently of the controllers' code.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from sandpool.api import labels
from sandpool.api.kinds import (
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SERVICE,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.api.warmpool import ON_REPLENISH
from sandpool.testing.simulation.api import ObjectStore
from sandpool.testing.simulation.invariants import Violation
from sandpool.testing.simulation.object_facts import condition, image, is_deleting, is_ready, name_of, owner_uid, uid_of

_TYPES = (
    *(SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SANDBOX_CLAIM, SANDBOX),
    *(POD, SERVICE, PERSISTENT_VOLUME_CLAIM, NETWORK_POLICY),
)


class FinalState:
    """The objects of the world's namespace at quiescence."""

    def __init__(self, store: ObjectStore, namespace: str, now: datetime) -> None:
        self.now = now
        self._objects: dict[ResourceType, list[Object]] = {
            type: [entry.decode() for entry in store.scan(type.group_resource, namespace)] for type in _TYPES
        }
        self._by_uid = {uid_of(each): each for objects in self._objects.values() for each in objects}
        self._children: dict[tuple[ResourceType, str], list[Object]] = {}
        for type, objects in self._objects.items():
            for each in objects:
                self._children.setdefault((type, owner_uid(each)), []).append(each)

    def check(self) -> None:
        for check in (
            self._nothing_left_behind,
            self._templates,
            self._pools,
            self._sandboxes,
            self._claims,
        ):
            for complaint in check():
                raise Violation(check.__name__.strip("_").replace("_", " ") + " at quiescence", complaint)

    def _all(self, type: ResourceType) -> list[Object]:
        return self._objects[type]

    def _named(self, type: ResourceType, name: str) -> Object | None:
        return next((each for each in self._objects[type] if name_of(each) == name), None)

    def _owned(self, type: ResourceType, owner: Object) -> list[Object]:
        return self._children.get((type, uid_of(owner)), [])

    # --- the invariants -----------------------------------------------------------------------------------------------

    def _nothing_left_behind(self) -> Iterator[str]:
        for type, objects in self._objects.items():
            for each in objects:
                if is_deleting(each):
                    yield f"{type.kind} {name_of(each)} is terminating and never removed"
                for owner in each["metadata"].get("ownerReferences") or []:
                    if owner["uid"] not in self._by_uid:
                        yield f"{type.kind} {name_of(each)} is left behind by {owner['kind']} {owner['name']}"
        for type in (POD, SERVICE, PERSISTENT_VOLUME_CLAIM):
            for each in self._children.get((type, ""), []):
                yield f"{type.kind} {name_of(each)} has no owner"

    def _templates(self) -> Iterator[str]:
        for template in self._all(SANDBOX_TEMPLATE):
            if len(self._owned(NETWORK_POLICY, template)) != 1:
                yield f"template {name_of(template)} has no network policy"

    def _pools(self) -> Iterator[str]:
        for pool in self._all(SANDBOX_WARM_POOL):
            name, spec = name_of(pool), pool["spec"]
            members = self._owned(SANDBOX, pool)
            template = self._named(SANDBOX_TEMPLATE, spec["sandboxTemplateRef"]["name"])
            ready = [each for each in members if is_ready(each)]
            if template is None:
                current: list[Object] = []
                if len(members) > spec["replicas"]:
                    yield f"{name} has {len(members)} members instead of {spec['replicas']}"
            else:
                current = [each for each in members if image(each["spec"]) == image(template["spec"])]
                if len(ready) != spec["replicas"] or len(members) != spec["replicas"]:
                    yield f"{name} has {len(members)} members, {len(ready)} ready, instead of {spec['replicas']}"
                strategy = (spec.get("updateStrategy") or {}).get("type", ON_REPLENISH)
                if strategy != ON_REPLENISH and len(current) != len(members):
                    yield f"{name} has {len(members) - len(current)} members of an outdated revision"
            status = pool.get("status") or {}
            expected = {
                "replicas": len(members),
                "readyReplicas": len(ready),
                "updatedReplicas": len(current),
                "updatedReadyReplicas": sum(map(is_ready, current)),
                "observedGeneration": pool["metadata"]["generation"],
            }
            for field, truth in expected.items():
                if status.get(field, 0) != truth:
                    yield f"{name} reports {field} {status.get(field, 0)} instead of {truth}"
            if template is not None and condition(pool, "Available").get("status") != "True":
                yield f"{name} is not reported as Available"

    def _sandboxes(self) -> Iterator[str]:
        for sandbox in self._all(SANDBOX):
            yield from self._children_of(sandbox)
            yield from self._status_of(sandbox)
            yield from self._labels_of(sandbox)

    def _children_of(self, sandbox: Object) -> Iterator[str]:
        name, spec = name_of(sandbox), sandbox["spec"]
        pods = self._owned(POD, sandbox)
        wanted = 0 if _is_suspended(sandbox) else 1
        if len(pods) != wanted:
            yield f"{name} has {len(pods)} pods instead of {wanted}"
        services = self._owned(SERVICE, sandbox)
        if spec.get("service") and len(services) != 1:
            yield f"{name} has {len(services)} Services"
        volumes = self._owned(PERSISTENT_VOLUME_CLAIM, sandbox)
        if len(volumes) != len(spec.get("volumeClaimTemplates") or []):
            yield f"{name} has {len(volumes)} volumes"

    def _status_of(self, sandbox: Object) -> Iterator[str]:
        name, status = name_of(sandbox), sandbox.get("status") or {}
        pods = self._owned(POD, sandbox)
        pod = pods[0] if pods else {}
        reported = pod.get("status") or {}
        addresses = [each["ip"] for each in reported.get("podIPs") or []]
        if (status.get("podIPs") or []) != addresses:
            yield f"{name} reports the addresses {status.get('podIPs')} instead of {addresses}"
        node = (pod.get("spec") or {}).get("nodeName", "")
        if status.get("nodeName", "") != node:
            yield f"{name} reports the node {status.get('nodeName')} instead of {node}"
        is_up = bool(pod) and reported.get("phase") == "Running" and is_ready(pod) and bool(addresses)
        if is_ready(sandbox) != (is_up and not _is_suspended(sandbox)):
            yield f"{name} reports Ready {condition(sandbox, 'Ready').get('status')} while its pod is up: {is_up}"
        if (condition(sandbox, "Suspended").get("status") == "True") != _is_suspended(sandbox):
            yield f"{name} reports Suspended {condition(sandbox, 'Suspended')}"
        if (condition(sandbox, "Finished").get("status") == "True") != _has_ended(pod):
            yield f"{name} reports Finished {condition(sandbox, 'Finished')} while its pod is {reported.get('phase')}"

    def _labels_of(self, sandbox: Object) -> Iterator[str]:
        name, owner = name_of(sandbox), self._by_uid.get(owner_uid(sandbox))
        kind = owner["kind"] if owner is not None else ""
        is_pooled = kind == SANDBOX_WARM_POOL.kind
        own = sandbox["metadata"].get("labels") or {}
        pool_label = own.get(labels.WARM_POOL)
        if kind == SANDBOX_CLAIM.kind and pool_label:
            yield f"{name} belongs to a claim and has the label of a pool"
        if kind == SANDBOX_CLAIM.kind and own.get(labels.CLAIM_UID) != owner_uid(sandbox):
            yield f"{name} lacks the UID label of its claim"
        for pod in self._owned(POD, sandbox):
            if (pod["metadata"].get("labels") or {}).get(labels.WARM_POOL) != (pool_label if is_pooled else None):
                yield f"the pod of {name} has the wrong warm pool label"

    def _claims(self) -> Iterator[str]:
        for claim in self._all(SANDBOX_CLAIM):
            owned = self._owned(SANDBOX, claim)
            if self._has_expired(claim):
                yield from _expired(claim, owned)
            elif owned:
                yield from self._served(claim, owned)
            else:
                yield from self._unserved(claim)

    def _served(self, claim: Object, owned: list[Object]) -> Iterator[str]:
        name, sandbox = name_of(claim), owned[0]
        if len(owned) > 1:
            yield f"{name} owns {len(owned)} sandboxes"
        reported = (claim.get("status") or {}).get("sandbox") or {}
        if reported.get("name") != name_of(sandbox):
            yield f"{name} reports {reported.get('name')} instead of {name_of(sandbox)}"
        if (reported.get("podIPs") or []) != ((sandbox.get("status") or {}).get("podIPs") or []):
            yield f"{name} reports the addresses {reported.get('podIPs')}"
        for type in ("Ready", "Finished"):
            if type == "Ready" and claim["spec"].get("additionalPodMetadata") and not self._can_be_served(claim):
                continue  # Ready reports the missing template that its metadata would be merged with
            here, there = condition(claim, type), condition(sandbox, type)
            if [here.get(key) for key in _SHOWN] != [there.get(key) for key in _SHOWN]:
                yield f"{name} reports {type} {here}, its sandbox {there}"
        if is_ready(claim):
            notes = claim["metadata"].get("annotations") or {}
            is_warm = sandbox["metadata"]["labels"].get(labels.LAUNCH_TYPE) == labels.LAUNCH_WARM
            if not notes.get(labels.CLAIM_FIRST_READY_AT):
                yield f"{name} is ready without the first-ready annotation"
            if is_warm and notes.get(labels.SANDBOX_NAME) != name_of(sandbox):
                yield f"{name} has {name_of(sandbox)}, its annotation names {notes.get(labels.SANDBOX_NAME)}"

    def _unserved(self, claim: Object) -> Iterator[str]:
        name = name_of(claim)
        pool = self._named(SANDBOX_WARM_POOL, claim["spec"]["warmPoolRef"]["name"])
        ready = condition(claim, "Ready")
        reason = "WarmPoolNotFound" if pool is None else "TemplateNotFound"
        if self._can_be_served(claim):
            yield f"{name} could be served and has no sandbox: {ready}"
        elif ready.get("status") != "False" or ready.get("reason") != reason:
            yield f"{name} reports {ready} instead of {reason}"

    def _can_be_served(self, claim: Object) -> bool:
        pool = self._named(SANDBOX_WARM_POOL, claim["spec"]["warmPoolRef"]["name"])
        template = "" if pool is None else pool["spec"]["sandboxTemplateRef"]["name"]
        return self._named(SANDBOX_TEMPLATE, template) is not None

    def _has_expired(self, claim: Object) -> bool:
        lifecycle = claim["spec"].get("lifecycle") or {}
        if (moment := lifecycle.get("shutdownTime")) and self.now >= _time(moment):
            return True
        finished = condition(claim, "Finished")
        ttl = lifecycle.get("ttlSecondsAfterFinished")
        if ttl is None or finished.get("status") != "True":
            return False
        return self.now >= _time(finished["lastTransitionTime"]) + timedelta(seconds=ttl)


# lastTransitionTime is left out: a claim may have become ready later than its sandbox.
_SHOWN = ("status", "reason", "message")


def _expired(claim: Object, owned: list[Object]) -> Iterator[str]:
    name = name_of(claim)
    if claim["spec"]["lifecycle"].get("shutdownPolicy", "Retain") != "Retain":
        yield f"{name} has expired and should have been deleted"
    if owned:
        yield f"{name} has expired and {name_of(owned[0])} still exists"
    ready = condition(claim, "Ready")
    if ready.get("status") != "False" or ready.get("reason") != "ClaimExpired":
        yield f"{name} has expired and reports {ready}"


def _is_suspended(sandbox: Object) -> bool:
    return bool(sandbox["spec"].get("operatingMode") == "Suspended")


def _has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
