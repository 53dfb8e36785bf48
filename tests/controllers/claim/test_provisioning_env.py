"""Environment variables of claims: where they go and when they are refused."""

from __future__ import annotations

import pytest

from sandpool.api.resource import Object
from sandpool.controllers.claim.errors import ClaimError, Retry
from sandpool.controllers.claim.provisioning import inject_env


def pod(*containers: Object, init: list[Object] | None = None) -> Object:
    spec: Object = {"containers": list(containers), "dnsPolicy": "None"}
    return {**spec, "initContainers": init} if init else spec


def container(name: str, **fields: object) -> Object:
    return {"name": name, "image": "image", **fields}


def variable(name: str, value: str = "new", container: str = "") -> Object:
    entry = {"name": name, "value": value}
    return {**entry, "containerName": container} if container else entry


def refused(spec: Object, env: list[Object], policy: str) -> ClaimError:
    with pytest.raises(ClaimError) as caught:
        inject_env(spec, env, policy)
    return caught.value


def test_empty_env_changes_nothing() -> None:
    spec = pod(container("main"))
    assert inject_env(spec, [], "Disallowed") is spec


@pytest.mark.parametrize("policy", ["Disallowed", "", "Whatever"])
def test_e47_disallowed_is_rejected_and_not_retried(policy: str) -> None:
    error = refused(pod(container("main")), [variable("A")], policy)
    assert (error.reason, error.retry) == ("EnvVarsInjectionRejected", Retry.NEVER)
    assert error.message == (
        "environment variable injection rejected: environment variable injection is not allowed by the template policy"
    )


def test_env_without_container_goes_to_the_first_after_its_own() -> None:
    spec = pod(container("main", env=[variable("A", "1")]), container("side"))
    env = [variable("B"), variable("C", container="main"), variable("D", container="side")]
    changed = inject_env(spec, env, "Allowed")
    assert [[each["name"] for each in one["env"]] for one in changed["containers"]] == [["A", "C", "B"], ["D"]]
    assert changed["dnsPolicy"] == "None"
    assert spec["containers"][0]["env"] == [variable("A", "1")]


def test_injected_variable_has_only_name_and_value() -> None:
    changed = inject_env(pod(container("main")), [variable("A", container="main")], "Allowed")
    assert changed["containers"][0]["env"] == [{"name": "A", "value": "new"}]


def test_init_containers_get_their_variables() -> None:
    spec = pod(container("main"), init=[container("setup"), container("other")])
    changed = inject_env(spec, [variable("A", container="setup")], "Allowed")
    assert changed["initContainers"] == [container("setup", env=[variable("A")]), container("other")]
    assert "env" not in changed["containers"][0]


def test_unknown_container_is_an_error_that_is_retried() -> None:
    error = refused(pod(container("main")), [variable("A", container="nope")], "Overrides")
    assert (error.reason, error.retry) == ("ReconcilerError", Retry.BACKOFF)
    assert error.message == ('Error seen: target container "nope" not found in template for environment variable "A"')


def test_e47_override_under_allowed_is_an_error_that_is_retried() -> None:
    error = refused(pod(container("main", env=[variable("A", "old")])), [variable("A")], "Allowed")
    assert (error.reason, error.retry) == ("ReconcilerError", Retry.BACKOFF)
    assert error.message == (
        'Error seen: environment variable override is not allowed by the template policy for variable "A"'
    )


def test_override_replaces_the_whole_variable_in_place() -> None:
    secret = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    changed = inject_env(pod(container("main", env=[secret, variable("B", "old")])), [variable("A")], "Overrides")
    assert changed["containers"][0]["env"] == [{"name": "A", "value": "new"}, variable("B", "old")]


@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_e47_env_from_under_allowed_is_rejected_where_variables_are_injected(where: str) -> None:
    whole = container("target", envFrom=[{"secretRef": {"name": "s"}}])
    spec = pod(whole) if where == "containers" else pod(container("main"), init=[whole])
    error = refused(spec, [variable("A", container="target")], "Allowed")
    assert error.reason == "EnvVarsInjectionRejected"
    assert error.message == (
        'environment variable injection rejected: container "target" uses EnvFrom sources; Allowed policy cannot '
        "safely prevent overriding EnvFrom-provided variables"
    )
    assert inject_env(spec, [variable("A", container="target")], "Overrides")


def test_e47_env_from_of_containers_without_injection_is_accepted() -> None:
    spec = pod(container("main"), container("side", envFrom=[{"secretRef": {"name": "s"}}]))
    assert inject_env(spec, [variable("A")], "Allowed")["containers"][1] is spec["containers"][1]
