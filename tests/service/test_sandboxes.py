from __future__ import annotations

import pytest

from sandpool.kube.errors import NotFound, ServiceUnavailable
from sandpool.kube.pod_client import LogOptions
from sandpool.service.errors import NotReadyInTime, NotRunning, UnknownName
from sandpool.service.sandboxes import Sandbox, not_running
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.service.test_claims import filled_pool
from tests.support.fake_pod_client import FakePodClient


async def test_a_sandbox_is_found_by_its_claim_and_by_its_own_name(world: World, service: Service) -> None:
    await filled_pool(world, service)
    claim = await service.claims.create("python", name="mine")
    for name in ("mine", "claim/mine", claim.sandbox, f"sandbox/{claim.sandbox}"):
        sandbox = await service.sandboxes.find(name)
        assert (sandbox.name, sandbox.claim, sandbox.pod) == (claim.sandbox, "mine", claim.sandbox)
        assert sandbox.container == "main"


async def test_an_unknown_name_gets_close_matches_or_advice(world: World, service: Service) -> None:
    with pytest.raises(UnknownName, match="Make one with: sandpool claim"):
        await service.sandboxes.find("mine")
    await filled_pool(world, service)
    await service.claims.create("python", name="mine")
    with pytest.raises(UnknownName, match=r'no claim or sandbox "mime" in .*\nDid you mean mine?'):
        await service.sandboxes.find("mime")
    with pytest.raises(UnknownName, match="List the claims with"):
        await service.sandboxes.find("claim/other")
    with pytest.raises(UnknownName, match=r'no sandbox "other"'):
        await service.sandboxes.find("sandbox/other")
    for name in ("", "pod/x", "a/b/c"):
        with pytest.raises(UnknownName, match="is not a name"):
            await service.sandboxes.find(name)


async def test_a_claim_without_a_sandbox_says_what_it_waits_for(world: World, service: Service) -> None:
    from sandpool.api.kinds import SANDBOX_CLAIM

    await world.create(SANDBOX_CLAIM, "early", spec={"warmPoolRef": {"name": "no"}})
    with pytest.raises(NotRunning, match=r'claim "early" has no sandbox yet'):
        await service.sandboxes.find("early")


async def test_sandbox_is_suspended_and_resumed(world: World, service: Service) -> None:
    await filled_pool(world, service)
    claim = await service.claims.create("python", name="mine")
    assert (await service.sandboxes.suspend("mine")).suspended
    suspended = await service.sandboxes.wait(claim.sandbox, suspended=True, timeout=30.0)
    assert suspended.suspended
    refusal = not_running(suspended, NotFound("pod"))
    assert str(refusal) == 'sandbox "mine" is suspended\nResume it with: sandpool resume mine'
    assert not (await service.sandboxes.resume("mine")).suspended
    assert (await service.sandboxes.wait(claim.sandbox, suspended=False, timeout=30.0)).ready
    with pytest.raises(NotReadyInTime, match=r"was not suspended within 0.1 s"):
        await service.sandboxes.wait(claim.sandbox, suspended=True, timeout=0.1)


async def test_logs_are_read_and_errors_reported(world: World, service: Service, pods: FakePodClient) -> None:
    await filled_pool(world, service)
    await service.claims.create("python", name="mine")
    sandbox = await service.sandboxes.find("mine")
    pods.log = [b"one\n", b"two\n"]
    assert [piece async for piece in service.sandboxes.logs(sandbox, LogOptions())] == [b"one\n", b"two\n"]
    pods.refusal = ServiceUnavailable("it is gone")
    with pytest.raises(NotRunning, match=r'sandbox "mine" cannot be reached: it is gone\nFind out'):
        [piece async for piece in service.sandboxes.logs(sandbox, LogOptions())]


def test_the_default_container_is_the_annotated_one() -> None:
    template = {
        "metadata": {"annotations": {"kubectl.kubernetes.io/default-container": "two"}},
        "spec": {"containers": [{"name": "one"}, {"name": "two"}]},
    }
    box = {"metadata": {"name": "box"}, "spec": {"podTemplate": template}}
    assert Sandbox.from_object(box).container == "two"
    template["metadata"] = {}
    assert Sandbox.from_object(box).container == "one"
