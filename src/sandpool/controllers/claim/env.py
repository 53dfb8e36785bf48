"""Environment variables a claim brings: which container gets them, and whether the template lets it."""

from __future__ import annotations

from collections.abc import Sequence

from sandpool.api.resource import Object
from sandpool.api.template import ALLOWED, OVERRIDES
from sandpool.controllers.claim.errors import environment_rejected, failure


def inject(pod_spec: Object, env: Sequence[Object], policy: str) -> Object:
    """A pod's spec with the variables of a claim; the very same spec if there are none.

    A variable without container is for the first one, after those that name it. Under ``Overrides`` it replaces one of
    its name whole, also one that came from a secret; under ``Allowed`` that is an error.
    """
    if not env:
        return pod_spec
    if policy not in (ALLOWED, OVERRIDES):
        raise environment_rejected("environment variable injection is not allowed by the template policy")
    init_containers: list[Object] = pod_spec.get("initContainers") or []
    containers: list[Object] = pod_spec.get("containers") or []
    _check_targets(env, {container["name"] for container in (*init_containers, *containers)})

    changed = dict(pod_spec)
    if init_containers:
        changed["initContainers"] = [
            _with_variables(container, _of_container(env, container["name"]), policy) for container in init_containers
        ]
    changed["containers"] = [
        _with_variables(container, _of_container(env, container["name"], is_default=index == 0), policy)
        for index, container in enumerate(containers)
    ]
    return changed


def _check_targets(env: Sequence[Object], known: set[str]) -> None:
    for variable in env:
        target = variable.get("containerName")
        if target and target not in known:
            raise failure(
                f'target container "{target}" not found in template for environment variable "{variable["name"]}"'
            )


def _of_container(env: Sequence[Object], name: str, *, is_default: bool = False) -> list[Object]:
    own = [variable for variable in env if variable.get("containerName") == name]
    return own + [variable for variable in env if not variable.get("containerName")] if is_default else own


def _with_variables(container: Object, variables: list[Object], policy: str) -> Object:
    if not variables:
        return container
    if policy == ALLOWED and container.get("envFrom"):
        raise environment_rejected(
            f'container "{container["name"]}" uses EnvFrom sources; Allowed policy cannot safely prevent overriding '
            "EnvFrom-provided variables"
        )
    env: list[Object] = list(container.get("env") or [])
    for variable in variables:
        name = variable["name"]
        entry = {"name": name, "value": variable["value"]}
        at = next((index for index, each in enumerate(env) if each["name"] == name), None)
        if at is None:
            env.append(entry)
        elif policy == OVERRIDES:
            env[at] = entry
        else:
            raise failure(f'environment variable override is not allowed by the template policy for variable "{name}"')
    return {**container, "env": env}
