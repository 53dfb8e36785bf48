"""Claims that get a new sandbox, or are refused one. Edge cases 33, 46, 47 and 52 of docs/compatibility.md."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.conditions import is_ready
from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.node.simulated import Fate
from sandpool.testing.world import World, owner_of
from tests.support.api_objects import owner_reference
from tests.support.backends import embedded
from tests.support.object_queries import is_creation

DISK: Object = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
VARIABLE: Object = {"name": "TASK", "value": "7"}


async def ready(world: World, claim: str = "mine") -> tuple[str, str, str]:
    return (await world.conditions(SANDBOX_CLAIM, claim))["Ready"]


async def made_template(world: World, container: Object | None = None, **spec: Any) -> None:
    main = {"name": "main", "image": "example.com/image:1", **(container or {})}
    init = {"name": "setup", "image": "example.com/image:1"}
    pod = {"containers": [main, {"name": "side", "image": "example.com/image:1"}], "initContainers": [init]}
    await world.create(SANDBOX_TEMPLATE, "python", spec={"podTemplate": {"spec": pod}, **spec})


# --- what is made ----------------------------------------------------------------------------------------------------


async def test_cold_sandbox_has_the_spec_of_the_template_and_the_name_of_the_claim(world: World) -> None:
    await world.template()
    await world.pool(0, filled=False)
    trace = '{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
    metadata = {"labels": {labels.CREATED_BY: "go-client"}, "annotations": {labels.TRACE_CONTEXT: trace}}
    claim = await world.claim("mine", metadata=metadata)
    box = (await world.served(1))["mine"]

    assert box["metadata"]["name"] == "mine"
    assert box["metadata"]["ownerReferences"] == [owner_reference(claim, controller=True, block=True)]
    identity = {labels.CLAIM_UID: claim["metadata"]["uid"], labels.CREATED_BY: "go-client"}
    assert box["metadata"]["labels"] == {
        **identity,
        labels.LAUNCH_TYPE: "cold",
        labels.TEMPLATE_REF_HASH: name_hash("python"),
    }
    annotations = box["metadata"]["annotations"]
    assert annotations[labels.TEMPLATE_REF] == "python"
    assert annotations[labels.TRACE_CONTEXT] == trace
    template = box["spec"]["podTemplate"]
    assert template["metadata"]["labels"] == {**identity, labels.TEMPLATE_REF_HASH: name_hash("python")}
    assert template["spec"]["automountServiceAccountToken"] is False
    assert template["spec"]["dnsPolicy"] == "None"
    assert template["spec"]["dnsConfig"] == {"nameservers": ["8.8.8.8", "1.1.1.1"]}
    (event,) = await world.events("mine")
    assert (event["reason"], event["action"], event["note"]) == (
        "SandboxProvisioned",
        "Provisioning",
        'Created Sandbox "mine"',
    )
    pod = await world.get(POD, "mine")
    assert pod["metadata"]["labels"][labels.CREATED_BY] == "go-client"
    assert labels.CLAIM_UID not in pod["metadata"]["labels"], "reserved keys do not reach the pod"


async def test_claim_with_env_or_volumes_is_never_warm(world: World) -> None:
    await made_template(world, envVarsInjectionPolicy="Allowed", volumeClaimTemplatesPolicy="Allowed")
    await world.pool(2)
    await world.claim("variable", env=[VARIABLE])
    await world.claim("disk", volumeClaimTemplates=[DISK])
    served = await world.served(2)

    assert {claim: box["metadata"]["name"] for claim, box in served.items()} == {"variable": "variable", "disk": "disk"}
    assert len(await world.members()) == 2
    assert owner_of(await world.get(PERSISTENT_VOLUME_CLAIM, "data-disk")) == ("Sandbox", "disk")


async def test_env_goes_to_the_named_container_or_the_first(world: World) -> None:
    """Init containers can be named as well."""
    await made_template(world, {"env": [{"name": "OLD", "value": "1"}]}, envVarsInjectionPolicy="Overrides")
    await world.pool(0, filled=False)
    env = [
        VARIABLE,
        {"name": "OLD", "value": "2"},
        {"name": "SIDE", "value": "3", "containerName": "side"},
        {"name": "SETUP", "value": "4", "containerName": "setup"},
    ]
    await world.claim("mine", env=env)
    pod = (await world.get(POD, "mine"))["spec"]

    assert [each.get("env") for each in pod["containers"]] == [
        [{"name": "OLD", "value": "2"}, VARIABLE],
        [{"name": "SIDE", "value": "3"}],
    ]
    assert pod["initContainers"][0]["env"] == [{"name": "SETUP", "value": "4"}]


# --- what is refused, and with which words ---------------------------------------------------------------------------

NOT_ALLOWED = "environment variable injection rejected: environment variable injection is not allowed by the template"
ENV_FROM = (
    'environment variable injection rejected: container "main" uses EnvFrom sources; Allowed policy cannot safely '
    "prevent overriding EnvFrom-provided variables"
)


@pytest.mark.parametrize(
    ("policy", "container", "variable", "reason", "message"),
    [
        ("Disallowed", {}, VARIABLE, "EnvVarsInjectionRejected", f"{NOT_ALLOWED} policy"),
        (
            "Allowed",
            {"envFrom": [{"configMapRef": {"name": "c"}}]},
            VARIABLE,
            "EnvVarsInjectionRejected",
            ENV_FROM,
        ),
        (
            "Allowed",
            {"env": [{"name": "TASK", "value": "1"}]},
            VARIABLE,
            "ReconcilerError",
            'Error seen: environment variable override is not allowed by the template policy for variable "TASK"',
        ),
        (
            "Allowed",
            {},
            {**VARIABLE, "containerName": "missing"},
            "ReconcilerError",
            'Error seen: target container "missing" not found in template for environment variable "TASK"',
        ),
    ],
)
async def test_e47_disallowed_env_is_rejected(
    world: World, policy: str, container: Object, variable: Object, reason: str, message: str
) -> None:
    await made_template(world, container, envVarsInjectionPolicy=policy)
    await world.pool(0, filled=False)
    await world.claim("mine", env=[variable])

    assert await ready(world) == ("False", reason, message)
    before = world.controllers.claims.controller.reconciles
    await world.wait(60)
    is_tried_again = world.controllers.claims.controller.reconciles > before
    assert is_tried_again is (reason == "ReconcilerError")
    assert not any(map(is_creation, world.wire.requests))


async def test_e47_rejected_claim_is_served_when_the_template_allows_it(world: World) -> None:
    await made_template(world)
    await world.pool(0, filled=False)
    await world.claim("mine", env=[VARIABLE])
    assert (await ready(world))[1] == "EnvVarsInjectionRejected"
    await world.patch(SANDBOX_TEMPLATE, "python", {"spec": {"envVarsInjectionPolicy": "Allowed"}})

    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))


MERGE = "failed to merge volume claim templates: "


@pytest.mark.parametrize(
    ("policy", "template", "claim", "message"),
    [
        ("Disallowed", [], [DISK], f"{MERGE}volume claim templates are disallowed by the template"),
        *embedded(
            (
                "Allowed",
                [DISK],
                [DISK],
                f"{MERGE}overriding volume claim templates is forbidden by the template: cannot override template "
                'volume "data"',
            ),
            ("Allowed", [], [DISK, DISK], f'{MERGE}claim: invalid volume claim templates: duplicate name "data"'),
            (
                "Overrides",
                [],
                [{"spec": DISK["spec"]}],
                f"{MERGE}claim: invalid volume claim templates: name at index 0 is empty",
            ),
        ),
    ],
)
async def test_disallowed_volumes_are_rejected(
    world: World, policy: str, template: list[Object], claim: list[Object], message: str
) -> None:
    await made_template(world, volumeClaimTemplatesPolicy=policy, volumeClaimTemplates=template)
    await world.pool(0, filled=False)
    await world.claim("mine", volumeClaimTemplates=claim)

    assert await ready(world) == ("False", "VolumeClaimTemplatesError", message)
    before = world.controllers.claims.controller.reconciles
    await world.wait(60)
    assert world.controllers.claims.controller.reconciles == before


async def test_volumes_of_a_claim_replace_those_of_the_template_in_place(world: World) -> None:
    other = {**DISK, "metadata": {"name": "other"}}
    larger = {"metadata": {"name": "data"}, "spec": {**DISK["spec"], "resources": {"requests": {"storage": "2Gi"}}}}
    new = {**DISK, "metadata": {"name": "new"}}
    await made_template(world, volumeClaimTemplatesPolicy="Overrides", volumeClaimTemplates=[DISK, other])
    await world.pool(0, filled=False)
    await world.claim("mine", volumeClaimTemplates=[new, larger])
    box = (await world.served(1))["mine"]

    assert [each["metadata"]["name"] for each in box["spec"]["volumeClaimTemplates"]] == ["data", "other", "new"]
    disk = await world.get(PERSISTENT_VOLUME_CLAIM, "data-mine")
    assert disk["spec"]["resources"]["requests"]["storage"] == "2Gi"


LABEL = "invalid additionalPodMetadata: failed to validate label "
ANNOTATION = "invalid additionalPodMetadata: failed to validate annotation "


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"labels": {"app": "sandbox-router"}},
            f'{LABEL}"app": restricted system label value: "app"="sandbox-router" is not allowed in '
            "AdditionalPodMetadata",
        ),
        (
            {"labels": {"team": "blue"}},
            f'{LABEL}"team": label "team" must have a domain prefix (e.g. \'sandbox.users.io/my-label\') to prevent '
            "opting into unintended policy domains",
        ),
        (
            {"labels": {"example.com/team": "blue"}},
            f'{LABEL}"example.com/team": label domain "example.com" is not in the allowlist',
        ),
        (
            {"annotations": {"agents.x-k8s.io/pod-name": "other"}},
            f'{ANNOTATION}"agents.x-k8s.io/pod-name": restricted system domain: "agents.x-k8s.io/pod-name" is not '
            "allowed in AdditionalPodMetadata",
        ),
    ],
)
async def test_invalid_metadata_are_rejected(world: World, metadata: Object, message: str) -> None:
    """Before a sandbox is taken or created, and without retries."""
    await world.template()
    await world.pool(1)
    await world.claim("mine", additionalPodMetadata=metadata)

    assert await ready(world) == ("False", "InvalidMetadata", message)
    before = world.controllers.claims.controller.reconciles
    await world.wait(60)
    assert world.controllers.claims.controller.reconciles == before
    assert len(await world.members()) == 1


async def test_e52_metadata_that_contradict_the_template_are_an_error(world: World) -> None:
    pod = {"containers": [{"name": "main", "image": "example.com/image:1"}]}
    said = {"labels": {"sandbox.users.io/team": "red", "sandbox.users.io/same": "same"}}
    await world.create(SANDBOX_TEMPLATE, "python", spec={"podTemplate": {"metadata": said, "spec": pod}})
    await world.pool(1)
    await world.claim("same", additionalPodMetadata={"labels": {"sandbox.users.io/same": "same"}})
    assert is_ready(await world.get(SANDBOX_CLAIM, "same"))
    await world.claim("mine", additionalPodMetadata={"labels": {"sandbox.users.io/team": "blue"}})

    assert await ready(world) == (
        "False",
        "ReconcilerError",
        'Error seen: metadata override conflict: label "sandbox.users.io/team" is defined in template with value '
        '"red", but claim requests "blue"',
    )
    assert len(await world.filled(1)) == 1, "nothing was taken for it"


# --- what is not there yet -------------------------------------------------------------------------------------------


async def test_claim_of_a_missing_pool_reports_it_and_is_served_later(world: World) -> None:
    await world.template()
    await world.claim("mine", warmPoolRef={"name": "later"})
    assert await ready(world) == ("False", "WarmPoolNotFound", 'SandboxWarmPool "later" not found')
    before = world.clock.monotonic()
    await world.pool(0, name="later", filled=False)

    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    assert world.clock.monotonic() == before, "by event, although it would also look every minute"


async def test_claim_of_a_missing_template_reports_it_and_is_served_later(world: World) -> None:
    await world.pool(0, filled=False)
    await world.claim("mine")
    assert await ready(world) == ("False", "TemplateNotFound", 'SandboxTemplate "python" not found')
    before = world.clock.monotonic()
    await world.template()

    assert is_ready(await world.get(SANDBOX_CLAIM, "mine"))
    assert world.clock.monotonic() == before


async def test_claim_copies_the_conditions_of_an_unready_sandbox(world: World) -> None:
    world.node.fate = lambda pod: Fate.FAILED
    await world.template()
    await world.pool(0, filled=False)
    await world.claim("mine")

    assert await world.conditions(SANDBOX_CLAIM, "mine") == {
        "Finished": ("True", "PodFailed", "Pod failed"),
        "Ready": ("False", "PodFailed", "Pod failed"),
    }
    finished = [
        each
        for name in (SANDBOX_CLAIM, SANDBOX)
        for each in (await world.get(name, "mine"))["status"]["conditions"]
        if each["type"] == "Finished"
    ]
    assert finished[0] == finished[1], "with the sandbox's own generation"
