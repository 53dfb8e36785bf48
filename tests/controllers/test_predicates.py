"""Functions for ``on_change_of`` read no field of a view that they do not declare.

The cache does not compute them while all declared fields are the same, so a field that is read and not declared would
be a change that no controller sees.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import pytest

from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SERVICE
from sandpool.api.resource import Object, ResourceType
from sandpool.controllers.manager import ControllerManager
from sandpool.kube.client import Client
from sandpool.kube.transport import Request, WatchEvent
from sandpool.testing.clock import ManualClock

_IDENTITY: Final = frozenset({"namespace", "name"})  # the same for all states of an object
_STATUS: Final[Object] = {
    "phase": "Failed",
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "ready"},
        {"type": "StateLost", "status": "True", "reason": "OOMKilled", "message": "gone"},
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"},
    ],
    "podIPs": [{"ip": "10.0.0.1"}],
    "sandbox": {"name": "other"},
}


class NoApi:
    async def request(self, request: Request) -> Any:
        raise ConnectionError

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        raise ConnectionError

    async def close(self) -> None:
        pass


class OnlyDeclared:
    """A view of which only some fields can be read. Properties are computed from those."""

    def __init__(self, view: object, fields: frozenset[str]) -> None:
        self._view = view
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        defined = getattr(type(self._view), name)
        if isinstance(defined, property):
            assert defined.fget is not None
            return defined.fget(self)
        if callable(defined):
            return defined.__get__(self)
        assert name in self._fields | _IDENTITY, f"reads {name} and does not declare it"
        return getattr(self._view, name)


def views(type: ResourceType) -> Iterator[Object]:
    metadata: Object = {"namespace": "default", "name": "mine", "uid": "1", "resourceVersion": "7", "generation": 2}
    yield {"metadata": metadata}
    owner = {"apiVersion": SANDBOX_CLAIM.api_version, "kind": "SandboxClaim", "name": "a", "uid": "2"}
    owned = {**metadata, "ownerReferences": [{**owner, "controller": True}], "labels": {"a": "b"}}
    yield {"metadata": {**owned, "annotations": {"agents.x-k8s.io/sandbox-name": "wrong"}}, "status": _without(type)}


def _without(type: ResourceType) -> Object:
    """The status of pods has other addresses than that of sandboxes and claims."""
    return _STATUS if type is POD else {**_STATUS, "podIPs": ["10.0.0.1"]}


TYPES: Final = (SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL, SANDBOX_TEMPLATE, POD, SERVICE)


@pytest.mark.parametrize("type", TYPES, ids=str)
async def test_predicates_read_only_declared_fields(type: ResourceType) -> None:
    manager = ControllerManager(Client(NoApi()), ManualClock(datetime(2030, 1, 1, tzinfo=UTC)), Random(1))
    cache = manager.caches[type]

    declared = [each for each in cache._subscriptions if each.fields]
    assert declared
    for subscription in declared:
        for found in map(cache.project, views(type)):
            assert subscription.on_change_of is not None
            read = subscription.on_change_of(OnlyDeclared(found, subscription.fields))
            if subscription.exactly:
                values = read if isinstance(read, tuple) else (read,)
                assert sorted(map(id, values)) == sorted(id(getattr(found, field)) for field in subscription.fields)


@pytest.mark.parametrize("type", TYPES, ids=str)
async def test_indexes_read_only_declared_fields(type: ResourceType) -> None:
    manager = ControllerManager(Client(NoApi()), ManualClock(datetime(2030, 1, 1, tzinfo=UTC)), Random(1))
    cache = manager.caches[type]

    for index in cache._indexes.values():
        assert index.fields
        for found in map(cache.project, views(type)):
            tuple(index.values(OnlyDeclared(found, index.fields)))
