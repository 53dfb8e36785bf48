"""Claims with variables: which get a warm sandbox, what the sandbox is given, and what happens when it is not given."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import EVENT, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.controllers.claim.late_binding import AVOIDED_SECONDS
from sandpool.controllers.options import ClaimOptions
from sandpool.kube.late_binding import BindRequest
from sandpool.testing.simulated_binder import Fault
from sandpool.testing.world import World

ENV = [{"name": "TOKEN", "value": "canary-1"}, {"name": "MODE", "value": "fast"}]
VALUES = {"TOKEN": "canary-1", "MODE": "fast"}
TIMEOUT = ClaimOptions().binding_timeout


async def template(
    world: World, *, name: str = "python", opted_in: str = "true", policy: str = "Allowed", **pod_spec: Any
) -> None:
    container: Object = {"name": "main", "image": "example.com/image:1", "env": [{"name": "HOME", "value": "/"}]}
    spec = {"podTemplate": {"spec": {"containers": [container], **pod_spec}}, "envVarsInjectionPolicy": policy}
    metadata = {"annotations": {labels.LATE_BINDING: opted_in}} if opted_in else {}
    await world.create(SANDBOX_TEMPLATE, name, metadata=metadata, spec=spec)


async def served(world: World, name: str = "mine") -> SharedObject:
    return (await world.served(len(await world.all(SANDBOX_CLAIM))))[name]


def launch_type(sandbox: SharedObject) -> str:
    found: str = sandbox["metadata"]["labels"][labels.LAUNCH_TYPE]
    return found


async def given(world: World, sandbox: SharedObject) -> dict[str, str]:
    pod = await world.get(POD, sandbox["metadata"]["name"])
    return world.binder.environments.get(pod["metadata"]["uid"], {})


async def test_claim_gets_a_warm_sandbox_with_its_variables(world: World) -> None:
    await template(world)
    await world.pool(2)
    await world.claim("mine", env=ENV)
    box = await served(world)
    assert launch_type(box) == "warm"
    assert await given(world, box) == VALUES
    assert box["metadata"]["annotations"][labels.LATE_BOUND] == "true"
    bound = ("True", "Acknowledged", "2 variables were handed to the warm sandbox")
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["EnvironmentBound"] == bound


async def test_values_are_in_no_object_but_the_claim(world: World) -> None:
    await template(world)
    await world.pool(2)
    await world.claim("mine", env=ENV)
    await served(world)
    await world.wait(60)
    for kind in (SANDBOX, POD, EVENT, SANDBOX_TEMPLATE):
        assert "canary" not in json.dumps(await world.all(kind))
    assert "canary" not in json.dumps((await world.get(SANDBOX_CLAIM, "mine"))["status"])
    assert "canary" not in json.dumps([str(request) for request in world.wire.requests])


async def test_claim_without_variables_is_not_bound(world: World) -> None:
    await template(world)
    await world.pool(2)
    await world.claim("mine")
    box = await served(world)
    assert world.binder.requests == []
    assert labels.LATE_BOUND not in box["metadata"]["annotations"]
    assert "EnvironmentBound" not in await world.conditions(SANDBOX_CLAIM, "mine")


@pytest.mark.parametrize("opted_in", ["", "false", "Enabled"])
async def test_template_that_does_not_opt_in_gives_a_sandbox_with_the_variables_in_its_pod(
    world: World, opted_in: str
) -> None:
    await template(world, opted_in=opted_in)
    await world.pool(2)
    await world.claim("mine", env=ENV)
    box = await served(world)
    assert (launch_type(box), world.binder.requests) == ("cold", [])
    assert "EnvironmentBound" not in await world.conditions(SANDBOX_CLAIM, "mine")


@pytest.mark.parametrize(
    ("claimed", "pod_spec", "why"),
    [
        ({"env": [{**ENV[0], "containerName": "side"}]}, {}, "for another container than the first"),
        ({"env": [{"name": "A", "value": "$(B)"}]}, {}, 'the variable "A" refers to others'),
        ({"env": [{"name": "A", "value": "a$$b"}]}, {}, 'the variable "A" refers to others'),
        ({"env": [{"name": "A", "value": "x" * (1 << 16)}]}, {}, 'too long, up to "A"'),
        ({"env": ENV}, {"hostNetwork": True}, "use the network of the node"),
    ],
    ids=["container", "reference", "escaped dollar", "long", "host network"],
)
async def test_variables_that_cannot_be_handed_over_make_a_claim_cold(
    world: World, claimed: Any, pod_spec: Any, why: str
) -> None:
    side = {"name": "side", "image": "example.com/image:1"}
    await template(world, initContainers=[side], **pod_spec)
    await world.pool(1)
    await world.claim("mine", **claimed)
    assert launch_type(await served(world)) == "cold"
    assert world.binder.requests == []
    status, reason, message = (await world.conditions(SANDBOX_CLAIM, "mine"))["EnvironmentBound"]
    assert (status, reason) == ("False", "NotPossible")
    assert why in message


async def test_policy_refuses_as_it_does_without_late_binding(world: World) -> None:
    await template(world, policy="Disallowed")
    await world.pool(1)
    await world.claim("mine", env=ENV)
    status, reason, _ = (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"]
    assert (status, reason) == ("False", "EnvVarsInjectionRejected")
    assert len(await world.filled(1)) == 1


async def test_variable_of_the_template_is_overridden_only_if_the_policy_allows_it(world: World) -> None:
    await template(world)
    await world.pool(1)
    await world.claim("mine", env=[{"name": "HOME", "value": "/mine"}])
    _, reason, message = (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"]
    assert (reason, 'override is not allowed by the template policy for variable "HOME"' in message) == (
        "ReconcilerError",
        True,
    )
    await world.patch(SANDBOX_TEMPLATE, "python", {"spec": {"envVarsInjectionPolicy": "Overrides"}})
    await world.wait(60)
    box = await served(world)
    assert (launch_type(box), await given(world, box)) == ("warm", {"HOME": "/mine"})


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.UNAVAILABLE])
async def test_request_is_repeated_until_it_is_acknowledged(world: World, fault: Fault) -> None:
    await template(world)
    await world.pool(1)
    world.binder.fault = lambda request: fault if len(world.binder.requests) < 3 else Fault.NONE
    await world.claim("mine", env=ENV)
    await world.wait(2)
    box = await served(world)
    assert (launch_type(box), await given(world, box)) == ("warm", VALUES)
    assert len(world.binder.requests) == 3
    assert len(world.binder.deliveries) == 1


@pytest.mark.parametrize(
    ("fault", "reason", "seconds"),
    [
        (Fault.UNAVAILABLE, "SandboxUnavailable", 2),
        (Fault.FORBIDDEN, "Forbidden", 0.1),
        (Fault.SILENT, "TimedOut", TIMEOUT + 0.1),
        (Fault.LOST_ANSWER, "TimedOut", TIMEOUT + 0.1),
    ],
)
async def test_claim_goes_cold_if_its_sandbox_does_not_acknowledge(
    world: World, fault: Fault, reason: str, seconds: float
) -> None:
    await template(world)
    (member,) = await filled(world)
    world.binder.fault = lambda request: fault
    await world.claim("mine", env=ENV)
    await world.wait(seconds)
    box = await served(world)
    assert launch_type(box) == "cold"
    assert not await world.exists(SANDBOX, member["metadata"]["name"]), "the variables may have reached it"
    status, told, message = (await world.conditions(SANDBOX_CLAIM, "mine"))["EnvironmentBound"]
    assert (status, told) == ("False", reason)
    await world.wait(10)
    (event,) = [each for each in await world.events("mine") if each["reason"] == "LateBindingFailed"]
    assert message in event["note"]


async def test_claim_says_that_its_bound_sandbox_was_replaced(world: World) -> None:
    await template(world)
    await world.pool(1)
    await world.claim("mine", env=ENV)
    bound = await served(world)
    await world.patch(SANDBOX_WARM_POOL, "pool", {"spec": {"replicas": 0}})
    await world.wait(5)
    await world.delete(SANDBOX, bound["metadata"]["name"])
    await world.wait(5)
    box = await served(world)
    assert launch_type(box) == "cold"
    told = (await world.conditions(SANDBOX_CLAIM, "mine"))["EnvironmentBound"]
    assert told == ("False", "NotPossible", "the sandbox that had taken the variables is gone")


async def filled(world: World) -> list[SharedObject]:
    await world.pool(1)
    return list(await world.filled(1))


async def test_revision_that_failed_costs_the_next_claims_no_warm_sandbox(world: World) -> None:
    await template(world)
    await world.pool(1)
    world.binder.fault = lambda request: Fault.FORBIDDEN
    await world.claim("first", env=ENV)
    await world.wait(5)
    asked = len(world.binder.requests)
    await world.filled(1)
    await world.claim("second", env=ENV)
    assert launch_type(await served(world, "second")) == "cold"
    assert len(world.binder.requests) == asked
    assert (await world.conditions(SANDBOX_CLAIM, "second"))["EnvironmentBound"][0] == "False"

    world.binder.fault = lambda request: Fault.NONE
    await world.wait(AVOIDED_SECONDS)
    await world.claim("third", env=ENV)
    assert launch_type(await served(world, "third")) == "warm"


async def test_sandbox_that_is_bound_already_is_discarded(world: World) -> None:
    await template(world)
    (member,) = await filled(world)
    pod = await world.get(POD, member["metadata"]["name"])
    await world.binder.bind(BindRequest(pod, "another-claim", {"A": "theirs"}))
    await world.claim("mine", env=ENV)
    await world.wait(1)
    assert launch_type(await served(world)) == "cold"
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["EnvironmentBound"][1] == "SandboxRefused"
    assert await given(world, await served(world)) == {}


async def of_another_owner(world: World, name: str) -> None:
    """Let another object control the pod, as if another user had created a pod under this name."""
    owner = await world.get(SANDBOX_TEMPLATE, "python")
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    reference |= {"name": "python", "uid": owner["metadata"]["uid"]}
    await world.patch(POD, name, {"metadata": {"ownerReferences": [reference]}})


async def deleted(world: World, name: str) -> None:
    """Delete the pod, which something holds."""
    await world.patch(POD, name, {"metadata": {"finalizers": ["example.com/held"]}})
    await world.delete(POD, name)


@pytest.mark.parametrize("change", [of_another_owner, deleted])
async def test_variables_go_only_to_a_pod_that_the_sandbox_controls_and_that_stays(
    world: World, change: Callable[[World, str], Awaitable[None]]
) -> None:
    await template(world)
    (member,) = await filled(world)
    name = member["metadata"]["name"]
    world.binder.fault = lambda request: Fault.UNAVAILABLE
    await world.claim("mine", env=ENV)
    assert world.binder.requests, "the controller asks the sandbox before its pod changes"
    await change(world, name)
    world.binder.fault = lambda request: Fault.NONE
    await world.wait(3)
    assert world.binder.deliveries == []
    assert launch_type(await served(world)) == "cold"
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["EnvironmentBound"][:2] == ("False", "SandboxUnavailable")


async def test_successor_of_a_controller_that_was_killed_binds_the_same_sandbox(world: World) -> None:
    """Killed after the values were delivered, and before the claim was Ready."""
    await template(world)
    (member,) = await filled(world)
    world.binder.fault = lambda request: Fault.SILENT
    await world.claim("mine", env=ENV)
    assert len(world.binder.deliveries) == 1
    assert not is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    world.binder.fault = lambda request: Fault.NONE
    await world.restart(grace=0)
    box = await served(world)
    assert box["metadata"]["name"] == member["metadata"]["name"]
    assert len(world.binder.deliveries) == 1
    assert await given(world, box) == VALUES


async def test_successor_does_not_ask_for_claims_that_are_ready(world: World) -> None:
    await template(world)
    await world.pool(1)
    await world.claim("mine", env=ENV)
    await served(world)
    asked = len(world.binder.requests)
    await world.restart()
    await world.patch(SANDBOX_CLAIM, "mine", {"metadata": {"labels": {"a": "b"}}})
    await world.wait(60)
    assert len(world.binder.requests) == asked


async def report(world: World, name: str, *, ready: bool) -> None:
    """Report the readiness of a pod, as its node would."""
    pod = await world.get(POD, name)
    others = [each for each in pod["status"]["conditions"] if each["type"] != "Ready"]
    since = world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}
    await world.patch(POD, name, {"status": {"conditions": [*others, condition]}}, "status")


async def restart(world: World, sandbox: SharedObject) -> None:
    name = sandbox["metadata"]["name"]
    await world.wait(5)
    await report(world, name, ready=False)
    world.binder.restart((await world.get(POD, name))["metadata"]["uid"])
    await world.wait(5)
    await report(world, name, ready=True)


async def test_restarted_sandbox_is_bound_again_before_its_claim_is_ready(world: World) -> None:
    await template(world)
    await world.pool(1)
    await world.claim("mine", env=ENV)
    box = await served(world)
    await restart(world, box)
    assert await given(world, await served(world)) == VALUES
    assert len(world.binder.deliveries) == 2


async def test_resumed_sandbox_is_bound_again_also_within_the_second(world: World) -> None:
    """The times of conditions have whole seconds, so the times of both runs can be the same."""
    await template(world)
    await world.pool(1)
    await world.claim("mine", env=ENV)
    box = await served(world)
    before = await world.get(POD, box["metadata"]["name"])
    await world.patch(SANDBOX, box["metadata"]["name"], {"spec": {"operatingMode": "Suspended"}})
    await world.until(lambda: gone(world, before))
    await world.patch(SANDBOX, box["metadata"]["name"], {"spec": {"operatingMode": "Running"}})
    box = await served(world)
    assert (await world.get(POD, box["metadata"]["name"]))["metadata"]["uid"] != before["metadata"]["uid"]
    assert await given(world, box) == VALUES


async def gone(world: World, pod: SharedObject) -> bool:
    return not await world.exists(POD, pod["metadata"]["name"])


async def test_used_sandbox_that_does_not_acknowledge_is_kept_and_asked_again(world: World) -> None:
    await template(world)
    await world.pool(1)
    await world.claim("mine", env=ENV)
    box = await served(world)
    world.binder.fault = lambda request: Fault.UNAVAILABLE
    await restart(world, box)
    await world.wait(5)
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"][:2] == ("False", "EnvironmentNotBound")
    assert await world.exists(SANDBOX, box["metadata"]["name"])
    world.binder.fault = lambda request: Fault.NONE
    await world.wait(120)
    assert (await served(world))["metadata"]["name"] == box["metadata"]["name"]
    assert await given(world, box) == VALUES


@pytest.mark.parametrize(
    ("type", "name", "change", "back", "why"),
    [
        (
            SANDBOX_CLAIM,
            "mine",
            {"spec": {"env": [{"name": "HOME", "value": "/mine"}]}},
            {"spec": {"env": ENV}},
            'override is not allowed by the template policy for variable "HOME"',
        ),
        (
            SANDBOX_CLAIM,
            "mine",
            {"spec": {"env": [{"name": "A", "value": "$(TOKEN)"}]}},
            {"spec": {"env": ENV}},
            'the variable "A" refers to others',
        ),
        (
            SANDBOX_TEMPLATE,
            "python",
            {"spec": {"envVarsInjectionPolicy": "Disallowed"}},
            {"spec": {"envVarsInjectionPolicy": "Allowed"}},
            "not allowed by the template policy",
        ),
        (
            SANDBOX_TEMPLATE,
            "python",
            {"metadata": {"annotations": {labels.LATE_BINDING: "false"}}},
            {"metadata": {"annotations": {labels.LATE_BINDING: "true"}}},
            "does not have the annotation",
        ),
    ],
    ids=["overriding claim", "referring claim", "disallowed", "opted out"],
)
async def test_restarted_sandbox_is_given_only_what_its_template_allows_now(
    world: World, type: ResourceType, name: str, change: Object, back: Object, why: str
) -> None:
    await template(world)
    await world.pool(1)
    await world.claim("mine", env=ENV)
    box = await served(world)
    await world.patch(type, name, change)
    await restart(world, box)
    await world.wait(5)
    assert await given(world, box) == {}
    status, reason, message = (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"]
    assert (status, reason) == ("False", "EnvironmentNotBound")
    assert why in message
    assert await world.exists(SANDBOX, box["metadata"]["name"]), "the claim has used it"
    await world.patch(type, name, back)
    await world.wait(120)
    assert (await served(world))["metadata"]["name"] == box["metadata"]["name"]
    assert await given(world, box) == VALUES


async def test_restarted_sandbox_is_given_nothing_without_its_template(world: World) -> None:
    """A claim can be changed to name a pool that does not exist; its variables need the consent of a template."""
    await template(world)
    await world.pool(1)
    await world.claim("mine", env=ENV)
    box = await served(world)
    await world.delete(SANDBOX_TEMPLATE, "python")
    await restart(world, box)
    await world.wait(5)
    assert await given(world, box) == {}
    assert (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"][:2] == ("False", "EnvironmentNotBound")
    assert await world.exists(SANDBOX, box["metadata"]["name"]), "the claim has used it"


@pytest.mark.parametrize("template_exists", [True, False])
async def test_template_of_another_pool_does_not_allow_what_the_template_of_the_sandbox_refuses(
    world: World, template_exists: bool
) -> None:
    await template(world)
    await world.pool(1)
    await template(world, name="lax", policy="Overrides")
    await world.pool(0, name="lax", sandboxTemplateRef={"name": "lax"})
    await world.claim("mine", env=ENV)
    box = await served(world)
    await world.patch(
        SANDBOX_CLAIM, "mine", {"spec": {"env": [{"name": "HOME", "value": "/mine"}], "warmPoolRef": {"name": "lax"}}}
    )
    if not template_exists:
        await world.delete(SANDBOX_TEMPLATE, "python")
    await restart(world, box)
    await world.wait(5)
    assert await given(world, box) == {}
    status, reason, message = (await world.conditions(SANDBOX_CLAIM, "mine"))["Ready"]
    assert (status, reason) == ("False", "EnvironmentNotBound")
    assert ("not allowed by the template policy" if template_exists else "is gone") in message
    assert await world.exists(SANDBOX, box["metadata"]["name"]), "the claim has used it"


async def test_edit_of_a_claim_does_not_change_what_its_sandbox_was_given(world: World) -> None:
    await template(world)
    await world.pool(1)
    await world.claim("mine", env=ENV)
    box = await served(world)
    await world.patch(SANDBOX_CLAIM, "mine", {"spec": {"env": [{"name": "TOKEN", "value": "other"}]}})
    await world.wait(30)
    assert await given(world, box) == VALUES
    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
