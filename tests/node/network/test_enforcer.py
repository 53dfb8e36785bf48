from __future__ import annotations

import asyncio

import pytest

from sandpool.api.resource import Object
from sandpool.engine.cache.store import Cache
from sandpool.node.network.enforcer import Enforcer
from sandpool.node.network.policy import EMPTY_FIREWALL, OPEN, Firewall, PodEndpoint
from sandpool.testing.clock import ManualClock


class Kernel:
    """Carries out scripts when it is allowed to."""

    def __init__(self) -> None:
        self.scripts: list[str] = []
        self.go = asyncio.Event()
        self.go.set()
        self.broken: Exception | None = None

    async def run(self, script: str) -> None:
        await self.go.wait()
        if self.broken:
            raise self.broken
        self.scripts.append(script)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def enforcer(kernel: Kernel, clock: ManualClock) -> Enforcer:
    return Enforcer(kernel.run, Cache(lambda obj: obj), Cache(lambda obj: obj), clock)


def enforced(enforcer: Enforcer) -> Firewall:
    """The firewall in force; empty if unknown."""
    return enforcer._enforced or EMPTY_FIREWALL


def behind(enforcer: Enforcer) -> int:
    """The number of changes that are not in force yet."""
    return enforcer._changes - enforcer._in_force


def endpoint(number: int) -> PodEndpoint:
    return PodEndpoint("default", f"pod-{number}", f"10.0.0.{number}", {})


def policy(version: int) -> Object:
    metadata = {"namespace": "default", "name": "closed", "uid": "1", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "version": version}}


async def test_first_enforcement_writes_the_whole_ruleset(enforcer: Enforcer, kernel: Kernel) -> None:
    await enforcer.add("1", endpoint(1))
    await enforcer.add("2", endpoint(2))
    assert kernel.scripts[0].startswith("table inet sandpool\ndelete table inet sandpool\n")
    assert kernel.scripts[1] == (
        "add element inet sandpool ingress { 10.0.0.2 : jump open_ingress }\n"
        "add element inet sandpool egress { 10.0.0.2 : jump open_egress }\n"
    )


async def test_concurrent_changes_are_enforced_together(enforcer: Enforcer, kernel: Kernel) -> None:
    kernel.go.clear()
    adding = [asyncio.create_task(enforcer.add(str(number), endpoint(number))) for number in range(50)]
    await asyncio.sleep(0)
    kernel.go.set()
    await asyncio.gather(*adding)
    assert len(kernel.scripts) <= 2


async def test_unchanged_ruleset_is_not_written(enforcer: Enforcer, kernel: Kernel) -> None:
    await enforcer.add("1", endpoint(1))
    await enforcer.add("1", endpoint(1))
    await enforcer.remove("missing")
    assert len(kernel.scripts) == 1


async def test_failure_causes_a_complete_rewrite(enforcer: Enforcer, kernel: Kernel) -> None:
    await enforcer.add("1", endpoint(1))
    kernel.broken = OSError("nft: no")
    with pytest.raises(OSError, match="nft: no"):
        await enforcer.add("2", endpoint(2))
    kernel.broken = None
    await enforcer.enforce()
    assert kernel.scripts[-1].startswith("table inet sandpool\ndelete table")
    assert enforced(enforcer).ingress == {"10.0.0.1": OPEN, "10.0.0.2": OPEN}


async def test_changed_policy_is_enforced(enforcer: Enforcer, kernel: Kernel) -> None:
    await enforcer.add("1", endpoint(1))
    enforcer.policies.record_write(policy(1))
    await enforcer.enforce()
    assert enforced(enforcer).ingress["10.0.0.1"] != OPEN
    await enforcer.close()


async def test_nothing_is_written_before_the_start(kernel: Kernel) -> None:
    policies: Cache[Object] = Cache(lambda obj: obj)
    policies.record_write(policy(1))
    enforcer = Enforcer(kernel.run, policies, Cache(lambda obj: obj), ManualClock())
    await asyncio.sleep(0)
    assert kernel.scripts == []
    await enforcer.enforce()
    assert len(kernel.scripts) == 1


async def test_labels_no_policy_selects_change_nothing(enforcer: Enforcer, kernel: Kernel) -> None:
    await enforcer.add("1", endpoint(1))
    chosen = policy(1)
    chosen["spec"]["podSelector"] = {"matchLabels": {"app": "closed"}}
    chosen["spec"]["ingress"] = [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}]
    enforcer.policies.record_write(chosen)
    await enforcer.enforce()
    compiled = kernel.scripts.copy()
    enforcer.relabel("1", {"claim": "x"})
    assert behind(enforcer) == 0
    for app in ("friend", "closed"):
        enforcer.relabel("1", {"app": app})
        assert behind(enforcer) > 0, "both who is chosen and who is let in"
        await enforcer.enforce()
    assert kernel.scripts != compiled
    await enforcer.close()


@pytest.mark.parametrize("why", [OSError("nft: no"), ValueError("nft: no")], ids=["refused", "bug"])
async def test_rejected_ruleset_is_retried_and_reported(
    enforcer: Enforcer, kernel: Kernel, clock: ManualClock, why: Exception
) -> None:
    await enforcer.add("1", endpoint(1))
    kernel.broken = why
    enforcer.policies.record_write(policy(1))
    await clock.settle()
    assert enforcer.failure == "nft: no"
    assert behind(enforcer) > 0
    await clock.advance(1)
    assert clock.next_alarm == 2, "later each time"
    kernel.broken = None
    await clock.advance(2)
    assert (enforcer.failure, behind(enforcer)) == ("", 0)
    assert enforced(enforcer).ingress["10.0.0.1"] != OPEN
    assert clock.sleepers == 0
    await enforcer.close()


async def test_failed_attachment_is_reported_until_it_is_repaired(enforcer: Enforcer, kernel: Kernel) -> None:
    await enforcer.enforce()
    kernel.broken = OSError("nft: no")
    with pytest.raises(OSError, match="nft: no"):
        await enforcer.add("1", endpoint(1))
    assert enforcer.failure == "nft: no"
    kernel.broken = None
    await enforcer.add("1", endpoint(1))
    assert enforcer.failure == ""


async def test_label_change_during_attachment_is_enforced(enforcer: Enforcer) -> None:
    """The labels change before the enforcer knows the pod."""
    restriction = policy(1)
    restriction["spec"]["podSelector"] = {"matchLabels": {"app": "closed"}}
    enforcer.policies.record_write(restriction)
    known = {"1": {"app": "closed"}}
    enforcer.labels_of = lambda uid, key: known.get(uid)
    enforcer.relabel("1", known["1"])
    await enforcer.add("1", endpoint(1))
    await enforcer.add("2", endpoint(2))
    assert enforced(enforcer).ingress["10.0.0.1"] != OPEN
    assert enforced(enforcer).ingress["10.0.0.2"] == OPEN
