"""What a template gives its sandboxes, and what it lets claims add."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE
from sandpool.api.resource import Object
from sandpool.testing.world import World

PUBLIC = {"nameservers": ["8.8.8.8", "1.1.1.1"]}
VOLUME: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
LARGE: Object = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "9Gi"}}}


async def template(world: World, pod_spec: Object | None = None, **spec: Any) -> None:
    """A template whose pod is ``pod_spec`` laid over a container, with an empty pool: every claim goes cold."""
    containers = [{"name": "main", "image": "example.com/image:1", "env": [{"name": "A", "value": "template"}]}]
    pod_template = {"spec": {"containers": containers, **(pod_spec or {})}, **spec.pop("podTemplate", {})}
    await world.create(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template, **spec})
    await world.pool(0)


async def ready(world: World, name: str = "mine") -> tuple[str, str, str]:
    return (await world.conditions(SANDBOX_CLAIM, name))["Ready"]


async def pod_spec(world: World, name: str = "mine") -> Object:
    spec: Object = (await world.get(SANDBOX, name))["spec"]["podTemplate"]["spec"]
    return spec


async def env(world: World, container: int = 0, of: str = "containers") -> list[Object]:
    found: list[Object] = (await world.get(POD, "mine"))["spec"][of][container].get("env", [])
    return found


async def refusals(world: World) -> list[tuple[str, str]]:
    """The reasons and notes of the events of a claim that got no sandbox."""
    return [(event["reason"], event["note"]) for event in await world.events("mine")]


async def is_tried_again(world: World) -> bool:
    passes = world.controllers.claims.controller.reconciles
    await world.wait(30)
    return world.controllers.claims.controller.reconciles > passes


# --- 4.3 secure defaults ---------------------------------------------------------------------------------------------


async def test_sandboxes_have_secure_defaults(world: World) -> None:
    """No token, and behind the default policy name servers that can be reached; of pools and of claims."""
    await template(world)
    await world.claim("mine")
    await world.pool(1, name="warm")
    (member,) = await world.members()
    for name in ("mine", member["metadata"]["name"]):
        pod = (await world.get(POD, name))["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert (pod["dnsPolicy"], pod["dnsConfig"]) == ("None", PUBLIC)


@pytest.mark.parametrize(
    ("said", "rules", "dns_policy", "dns_config"),
    [
        ({"dnsPolicy": "ClusterFirst"}, {}, "ClusterFirst", None),
        ({"dnsConfig": {"nameservers": ["192.0.2.53"]}}, {}, "None", PUBLIC),
        ({}, {"networkPolicy": {}}, None, None),
        ({}, {"networkPolicyManagement": "Unmanaged"}, None, None),
    ],
    ids=["a DNS policy", "a DNS configuration is replaced", "rules of its own", "no rules of ours"],
)
async def test_name_servers_are_set_only_with_the_default_policy(
    world: World, said: Object, rules: Object, dns_policy: str | None, dns_config: Object | None
) -> None:
    await template(world, said, **rules)
    await world.claim("mine")
    spec = await pod_spec(world)
    assert (spec.get("dnsPolicy"), spec.get("dnsConfig")) == (dns_policy, dns_config)


async def test_token_is_mounted_where_the_template_says_so(world: World) -> None:
    await template(world, {"automountServiceAccountToken": True})
    await world.claim("mine")
    assert (await pod_spec(world))["automountServiceAccountToken"] is True


# --- 4.4 environment -------------------------------------------------------------------------------------------------

SIDES: Object = {
    "initContainers": [{"name": "setup", "image": "example.com/image:1"}],
    "containers": [
        {"name": "main", "image": "example.com/image:1", "env": [{"name": "A", "value": "template"}]},
        {"name": "side", "image": "example.com/image:1"},
    ],
}


async def test_env_goes_to_the_named_container_or_the_first(world: World) -> None:
    """A container by name, init containers too; the first one otherwise, after its own."""
    await template(world, SIDES, envVarsInjectionPolicy="Allowed")
    await world.claim(
        "mine",
        env=[
            {"name": "D", "value": "default"},
            {"name": "M", "value": "main", "containerName": "main"},
            {"name": "S", "value": "side", "containerName": "side"},
            {"name": "I", "value": "init", "containerName": "setup"},
        ],
    )
    assert await env(world) == [
        {"name": "A", "value": "template"},
        {"name": "M", "value": "main"},
        {"name": "D", "value": "default"},
    ]
    assert await env(world, 1) == [{"name": "S", "value": "side"}]
    assert await env(world, 0, "initContainers") == [{"name": "I", "value": "init"}]
    assert (await ready(world))[0] == "True"


async def test_env_replaces_whole_variables_where_overrides_are_allowed(world: World) -> None:
    source = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {"name": "main", "image": "example.com/image:1", "env": [source, {"name": "B", "value": "2"}]}
    await template(world, {"containers": [container]}, envVarsInjectionPolicy="Overrides")
    await world.claim("mine", env=[{"name": "A", "value": "claim"}])
    assert await env(world) == [{"name": "A", "value": "claim"}, {"name": "B", "value": "2"}]


@pytest.mark.parametrize("policy", [{}, {"envVarsInjectionPolicy": "Disallowed"}], ids=["unset", "disallowed"])
async def test_env_is_rejected_unless_the_template_allows_it(world: World, policy: Object) -> None:
    await template(world, **policy)
    await world.claim("mine", env=[{"name": "B", "value": "1"}])
    assert await ready(world) == (
        "False",
        "EnvVarsInjectionRejected",
        "environment variable injection rejected: environment variable injection is not allowed by the template policy",
    )
    assert not await is_tried_again(world), "it would not help"
    assert await world.all(SANDBOX) == []
    assert await refusals(world) == [
        (
            "EnvVarsInjectionRejected",
            "environment variable injection rejected: environment variable injection is not allowed by the template "
            'policy: set envVarsInjectionPolicy to Allowed or Overrides in template "python", or change the claim',
        )
    ]


async def test_existing_variable_is_not_overridden_under_allowed(world: World) -> None:
    await template(world, envVarsInjectionPolicy="Allowed")
    await world.claim("mine", env=[{"name": "A", "value": "claim"}])
    assert await ready(world) == (
        "False",
        "ReconcilerError",
        'Error seen: environment variable override is not allowed by the template policy for variable "A"',
    )
    assert await is_tried_again(world)
    assert await world.all(SANDBOX) == []
    assert await refusals(world) == [
        (
            "ReconcilerError",
            'Error seen: environment variable override is not allowed by the template policy for variable "A": '
            'set envVarsInjectionPolicy to Overrides in template "python", or change the claim',
        )
    ]


async def test_env_for_a_missing_container_is_an_error(world: World) -> None:
    await template(world, envVarsInjectionPolicy="Overrides")
    await world.claim("mine", env=[{"name": "B", "value": "1", "containerName": "missing"}])
    assert await ready(world) == (
        "False",
        "ReconcilerError",
        'Error seen: target container "missing" not found in template for environment variable "B"',
    )
    assert await is_tried_again(world)


async def test_env_is_not_added_to_a_container_with_env_from(world: World) -> None:
    """It is unknown whether they override a variable; where overriding is allowed that does not matter."""
    main = {"name": "main", "image": "example.com/image:1", "envFrom": [{"configMapRef": {"name": "c"}}]}
    await template(world, {"containers": [main]}, envVarsInjectionPolicy="Allowed")
    await world.claim("mine", env=[{"name": "B", "value": "1"}])
    assert await ready(world) == (
        "False",
        "EnvVarsInjectionRejected",
        'environment variable injection rejected: container "main" uses EnvFrom sources; Allowed policy cannot safely '
        "prevent overriding EnvFrom-provided variables",
    )


# --- 4.5 volumes -----------------------------------------------------------------------------------------------------


def volumes(**specs: Object) -> list[Object]:
    return [{"metadata": {"name": name}, "spec": spec} for name, spec in specs.items()]


async def claimed(world: World) -> dict[str, str]:
    found = await world.all(PERSISTENT_VOLUME_CLAIM)
    return {each["metadata"]["name"]: each["spec"]["resources"]["requests"]["storage"] for each in found}


async def test_volumes_of_a_claim_are_added_to_those_of_the_template(world: World) -> None:
    await template(world, volumeClaimTemplates=volumes(data=VOLUME), volumeClaimTemplatesPolicy="Allowed")
    await world.claim("mine", volumeClaimTemplates=volumes(more=LARGE))
    assert await claimed(world) == {"data-mine": "1Gi", "more-mine": "9Gi"}


async def test_volumes_of_a_claim_replace_those_of_the_template(world: World) -> None:
    given = volumes(data=VOLUME, cache=VOLUME)
    await template(world, volumeClaimTemplates=given, volumeClaimTemplatesPolicy="Overrides")
    await world.claim("mine", volumeClaimTemplates=volumes(cache=LARGE, more=LARGE))
    assert await claimed(world) == {"data-mine": "1Gi", "cache-mine": "9Gi", "more-mine": "9Gi"}
    names = [each["metadata"]["name"] for each in (await world.get(SANDBOX, "mine"))["spec"]["volumeClaimTemplates"]]
    assert names == ["data", "cache", "more"]


@pytest.mark.parametrize(
    ("policy", "asked", "detail"),
    [
        ({}, volumes(more=VOLUME), "volume claim templates are disallowed by the template"),
        (
            {"volumeClaimTemplatesPolicy": "Allowed"},
            volumes(data=VOLUME),
            'overriding volume claim templates is forbidden by the template: cannot override template volume "data"',
        ),
        (
            {"volumeClaimTemplatesPolicy": "Overrides"},
            [*volumes(more=VOLUME), *volumes(more=VOLUME)],
            'claim: invalid volume claim templates: duplicate name "more"',
        ),
        (
            {"volumeClaimTemplatesPolicy": "Overrides"},
            [{"spec": VOLUME}],
            "claim: invalid volume claim templates: name at index 0 is empty",
        ),
    ],
    ids=["disallowed", "a clash", "twice", "no name"],
)
async def test_disallowed_volumes_are_rejected(world: World, policy: Object, asked: list[Object], detail: str) -> None:
    await template(world, volumeClaimTemplates=volumes(data=VOLUME), **policy)
    await world.claim("mine", volumeClaimTemplates=asked)
    message = f"failed to merge volume claim templates: {detail}"
    assert await ready(world) == ("False", "VolumeClaimTemplatesError", message)
    assert not await is_tried_again(world)
    assert await world.all(SANDBOX) == []


async def test_invalid_volumes_of_a_template_are_reported(world: World) -> None:
    await template(world, volumeClaimTemplates=[*volumes(data=VOLUME), *volumes(data=VOLUME)])
    await world.claim("mine")
    assert await ready(world) == (
        "False",
        "VolumeClaimTemplatesError",
        'invalid volume claim templates in template: invalid volume claim templates: duplicate name "data"',
    )


# --- 4.6 metadata ----------------------------------------------------------------------------------------------------


async def test_metadata_of_a_claim_reach_its_pod(world: World) -> None:
    await template(world, podTemplate={"metadata": {"labels": {"tier": "1"}, "annotations": {"a": "1"}}})
    added = {"labels": {"sandbox.users.io/team": "x"}, "annotations": {"a": "1", "note": "hi"}}
    await world.claim("mine", additionalPodMetadata=added)
    metadata = (await world.get(POD, "mine"))["metadata"]
    assert {"tier": "1", "sandbox.users.io/team": "x"}.items() <= metadata["labels"].items()
    assert {"a": "1", "note": "hi"}.items() <= metadata["annotations"].items()


@pytest.mark.parametrize(
    ("added", "detail"),
    [
        (
            {"labels": {"App": "Sandbox-Router"}},
            'failed to validate label "App": restricted system label value: "App"="Sandbox-Router" is not allowed in '
            "AdditionalPodMetadata",
        ),
        (
            {"labels": {"team": "x"}},
            'failed to validate label "team": label "team" must have a domain prefix (e.g. '
            "'sandbox.users.io/my-label') to prevent opting into unintended policy domains",
        ),
        (
            {"labels": {"example.com/team": "x"}},
            'failed to validate label "example.com/team": label domain "example.com" is not in the allowlist',
        ),
        (
            {"annotations": {"x.k8s.io/y": "1"}},
            'failed to validate annotation "x.k8s.io/y": restricted system domain: "x.k8s.io/y" is not allowed in '
            "AdditionalPodMetadata",
        ),
    ],
    ids=["the router's label", "no domain", "another domain", "a domain of Kubernetes"],
)
async def test_disallowed_metadata_of_a_claim_are_rejected(world: World, added: Object, detail: str) -> None:
    await template(world)
    await world.claim("mine", additionalPodMetadata=added)
    assert await ready(world) == ("False", "InvalidMetadata", f"invalid additionalPodMetadata: {detail}")
    assert await world.all(SANDBOX) == []


async def test_metadata_that_contradict_the_template_are_rejected(world: World) -> None:
    await template(world, podTemplate={"metadata": {"labels": {"sandbox.users.io/team": "x"}}})
    await world.claim("mine", additionalPodMetadata={"labels": {"sandbox.users.io/team": "y"}})
    assert await ready(world) == (
        "False",
        "ReconcilerError",
        'Error seen: metadata override conflict: label "sandbox.users.io/team" is defined in template with value "x", '
        'but claim requests "y"',
    )
    assert await is_tried_again(world)
