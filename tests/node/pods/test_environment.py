"""Environment variables of containers."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, SECRET
from sandpool.api.resource import Object
from sandpool.node.pods.downward import PodPlacement
from sandpool.node.pods.environment import (
    ConfigError,
    EnvironmentSources,
    Source,
    environment,
    sources_of,
)
from sandpool.testing.objects import pod

SETTINGS, KEYS = Source(CONFIG_MAP, "settings"), Source(SECRET, "keys")
POD = pod("web", metadata={"namespace": "space", "uid": "u-1", "labels": {"tier": "front"}})
CONTAINER = {"name": "main", "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}}


def around(**sources: Object | None) -> EnvironmentSources:
    known: dict[Source, Object | None] = {
        SETTINGS: {"data": {"MODE": "fast", "LEVEL": "$(MODE)"}},
        KEYS: {"data": {"token": base64.b64encode(b"hush\xff").decode()}},
    }
    links = {"API_SERVICE_HOST": "10.96.0.1", "MODE": "linked"}
    return EnvironmentSources(
        POD, PodPlacement("node-1", ("192.0.2.1",), ("10.1.0.1", "fd00::1")), {"cpu": "4"}, known, links
    )


def variables(*env: Object, env_from: list[Object] | None = None) -> dict[str, str]:
    return environment({**CONTAINER, "env": list(env), "envFrom": env_from or []}, around())


def from_field(path: str) -> Object:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def test_service_links_have_the_lowest_precedence() -> None:
    found = variables({"name": "API_SERVICE_HOST", "value": "mine"})
    assert found == {"API_SERVICE_HOST": "mine", "MODE": "linked"}


def test_values_expand_earlier_variables() -> None:
    found = variables(
        {"name": "B", "value": "$(A)"},
        {"name": "A", "value": "1"},
        {"name": "C", "value": "$(A)$(B) $(API_SERVICE_HOST)"},
    )
    assert (found["B"], found["C"]) == ("$(A)", "1$(A) 10.96.0.1")


def test_env_from_with_prefix_is_overridden_by_env() -> None:
    env_from: list[Object] = [
        {"prefix": "CM_", "configMapRef": {"name": "settings"}},
        {"configMapRef": {"name": "settings"}},
    ]
    found = variables({"name": "LEVEL", "value": "own"}, env_from=env_from)
    assert (found["CM_MODE"], found["MODE"], found["LEVEL"], found["CM_LEVEL"]) == ("fast", "fast", "own", "$(MODE)")


def test_secrets_keep_their_bytes() -> None:
    found = variables({"name": "T", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}})
    assert found["T"].encode(errors="surrogateescape") == b"hush\xff"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "space"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['tier']", "front"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "node-1"),
        ("status.hostIP", "192.0.2.1"),
        ("status.podIP", "10.1.0.1"),
        ("status.podIPs", "10.1.0.1,fd00::1"),
    ],
)
def test_field_refs_are_resolved(path: str, value: str) -> None:
    assert variables(from_field(path))["X"] == value


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "limits.memory"}, str(1 << 30)),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "1024"),
        ({"resource": "requests.cpu"}, "0"),
        ({"resource": "limits.ephemeral-storage"}, "0"),
    ],
)
def test_resource_field_refs_are_resolved(reference: Object, value: str) -> None:
    assert variables({"name": "X", "valueFrom": {"resourceFieldRef": reference}})["X"] == value


def test_unset_limit_is_the_allocatable_amount() -> None:
    variable = {"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}
    assert environment({"name": "main", "env": [variable]}, around())["X"] == "4"


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"envFrom": [{"configMapRef": {"name": "none"}}]}, 'configmap "none" not found'),
        ({"envFrom": [{"secretRef": {"name": "none"}}]}, 'secret "none" not found'),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "K"}}}]},
            "couldn't find key K in ConfigMap space/settings",
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "K"}}}]},
            "couldn't find key K in Secret space/keys",
        ),
        ({"env": [from_field("spec.containers")]}, "unsupported fieldPath: spec.containers"),
    ],
)
def test_missing_source_is_named(container: Object, words: str) -> None:
    with pytest.raises(ConfigError) as failed:
        environment({"name": "main", **container}, around())
    assert str(failed.value) == words


@pytest.mark.parametrize(
    "container",
    [
        {"envFrom": [{"configMapRef": {"name": "none", "optional": True}}]},
        {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "none", "key": "K", "optional": True}}}]},
        {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "K", "optional": True}}}]},
    ],
)
def test_optional_missing_source_is_skipped(container: dict[str, Any]) -> None:
    assert "X" not in environment({"name": "main", **container}, around())


def test_sources_of_lists_objects_to_fetch() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "env": [
            {"name": "X", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "K"}}},
            from_field("metadata.name"),
        ],
    }
    assert sources_of(container) == {SETTINGS, KEYS}
