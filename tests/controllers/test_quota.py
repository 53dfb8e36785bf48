"""The line of claims that wait for the limit of their namespace, against a model."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from sandpool.api.kinds import NAMESPACE, SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import MAX_CLAIMS
from sandpool.api.resource import Key, ResourceType
from sandpool.api.views import ClaimView
from sandpool.controllers.informers import Caches
from sandpool.controllers.quota import ClaimQuota, NamespaceLimits
from sandpool.testing.objects import new
from tests.support.claim_objects import claim
from tests.support.sandbox_objects import sandbox


class Rig:
    """Caches with the quota of one namespace, and the claims that it has enqueued."""

    def __init__(self, limit: str) -> None:
        self.caches = Caches()
        self.enqueued: list[str] = []
        limits = NamespaceLimits(self.caches)
        self.quota = ClaimQuota(self.caches, limits, lambda key: self.enqueued.append(key.name))
        self.quota.subscribe()
        self._versions: Iterator[int] = iter(range(2, 1_000_000))
        self.set_limit(limit)

    def set_limit(self, value: str) -> None:
        metadata = {"annotations": {MAX_CLAIMS: value}, "resourceVersion": str(next(self._versions)), "uid": "n"}
        self.caches.namespaces.observe(new(NAMESPACE, "default", metadata=metadata))

    def add(self, name: str, second: int = 0) -> ClaimView:
        created = f"2026-11-01T12:00:{second:02}Z"
        metadata = {"creationTimestamp": created, "resourceVersion": str(next(self._versions)), "generation": 1}
        self.caches.claims.observe(claim(name, metadata=metadata))
        return self.view(name)

    def view(self, name: str) -> ClaimView:
        found = self.caches.claims.get(Key("default", name))
        assert found is not None
        return found

    def reconcile(self, name: str) -> bool:
        """Ask as a reconcile does. Returns whether the claim may have a sandbox."""
        view = self.view(name)
        if self.quota.refusal(view) is not None:
            self.quota.wait(view)
            return False
        self.quota.admit(view)
        return True

    def bind(self, name: str) -> None:
        version = {"resourceVersion": str(next(self._versions))}
        self.caches.sandboxes.observe(sandbox(f"box-{name}", owner=claim(name), metadata=version))

    def delete(self, type: ResourceType, name: str) -> None:
        cache = self.caches[type]
        view = cache.get(Key("default", name))
        assert view is not None
        version = {"resourceVersion": str(next(self._versions))}
        cache.observe_deletion({"metadata": {"namespace": "default", "name": name, "uid": view.uid, **version}})


def test_claims_wait_in_the_order_of_their_creation() -> None:
    rig = Rig("1")
    rig.add("first")
    assert rig.reconcile("first")
    for second, name in ((3, "a"), (2, "m"), (1, "z")):
        rig.add(name, second)
        assert not rig.reconcile(name)
    rig.delete(SANDBOX_CLAIM, "first")
    assert rig.enqueued == ["z"]
    assert not rig.reconcile("a")
    assert not rig.reconcile("m")
    assert rig.reconcile("z")


def test_new_claim_does_not_overtake_those_in_line() -> None:
    rig = Rig("1")
    for second, name in enumerate(("a", "b", "c")):
        rig.add(name, second)
    assert rig.reconcile("a")
    assert not rig.reconcile("b")
    rig.delete(SANDBOX_CLAIM, "a")
    assert not rig.reconcile("c")
    assert rig.reconcile("b")


def test_place_is_kept_until_the_sandbox_is_gone() -> None:
    rig = Rig("1")
    rig.add("a")
    assert rig.reconcile("a")
    rig.bind("a")
    rig.add("b", 1)
    assert not rig.reconcile("b")
    rig.delete(SANDBOX_CLAIM, "a")
    assert rig.enqueued == []
    rig.delete(SANDBOX, "box-a")
    assert rig.enqueued == ["b"]


def test_claim_with_a_sandbox_has_a_place_whatever_the_limit() -> None:
    rig = Rig("0")
    rig.add("a")
    rig.bind("a")
    assert rig.quota.refusal(rig.view("a")) is None
    rig.add("b", 1)
    assert not rig.reconcile("b")


@pytest.mark.parametrize("seed", range(20))
def test_line_agrees_with_a_model(seed: int) -> None:
    """Claims come, are reconciled in any order, are given up and deleted, and the limit changes."""
    rng, rig, limit = Random(seed), Rig("3"), 3
    holding: set[str] = set()
    waiting: set[str] = set()
    seconds: dict[str, int] = {}
    for number in range(300):
        match rng.choice(("add", "reconcile", "reconcile", "leave", "delete", "limit")):
            case "add":
                name = f"claim-{number}"
                seconds[name] = rng.randrange(60)
                rig.add(name, seconds[name])
            case "reconcile" if seconds:
                name = rng.choice(sorted(seconds))
                ahead = [each for each in waiting - {name} if (seconds[each], each) < (seconds[name], name)]
                allowed = name in holding or len(holding) + len(ahead) < limit
                assert rig.reconcile(name) is allowed
                (holding if allowed else waiting).add(name)
                waiting -= holding
            case "leave" if seconds:
                name = rng.choice(sorted(seconds))
                rig.quota.leave(rig.view(name))
                holding.discard(name)
                waiting.discard(name)
            case "delete" if seconds:
                name = rng.choice(sorted(seconds))
                rig.delete(SANDBOX_CLAIM, name)
                del seconds[name]
                holding.discard(name)
                waiting.discard(name)
            case "limit":
                limit = rng.randrange(6)
                rig.set_limit(str(limit))
        # The claims that may go next have been enqueued since they began to wait.
        line = sorted(waiting, key=lambda each: (seconds[each], each))
        for name in line[: max(0, limit - len(holding))]:
            assert name in rig.enqueued
        rig.enqueued = [each for each in rig.enqueued if each in waiting]
