from __future__ import annotations

import base64
from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.node.pods.downward import PodPlacement
from sandpool.node.pods.interfaces import VolumeFailure
from sandpool.node.volumes.projection import File, Sources, project

POD: Object = {
    "metadata": {"name": "pod", "namespace": "default", "uid": "1", "labels": {"a": "b"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"memory": "64Mi"}}}]},
}
CONFIG: Object = {
    "kind": "ConfigMap",
    "data": {"one": "1", "two": "2"},
    "binaryData": {"raw": base64.b64encode(b"\0\1").decode()},
}
SECRET: Object = {"kind": "Secret", "data": {"password": base64.b64encode(b"hush").decode()}}


def sources() -> Sources:
    async def config_map(name: str) -> Object | None:
        return CONFIG if name == "config" else None

    async def secret(name: str) -> Object | None:
        return SECRET if name == "secret" else None

    async def token(audience: str, seconds: int) -> str:
        return f"token for {audience} {seconds}"

    return Sources(config_map, secret, token, POD, PodPlacement("node"), {})


@pytest.mark.parametrize(
    ("volume", "files"),
    [
        (
            {"configMap": {"name": "config"}},
            {"one": File(b"1", 0o644), "two": File(b"2", 0o644), "raw": File(b"\0\1", 0o644)},
        ),
        (
            {"configMap": {"name": "config", "items": [{"key": "one", "path": "a/b", "mode": 0o400}]}},
            {"a/b": File(b"1", 0o400)},
        ),
        ({"configMap": {"name": "none", "optional": True}}, {}),
        ({"configMap": {"name": "config", "optional": True, "items": [{"key": "three", "path": "3"}]}}, {}),
        ({"secret": {"secretName": "secret", "defaultMode": 0o600}}, {"password": File(b"hush", 0o600)}),
        (
            {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"labels": File(b'a="b"', 0o644)},
        ),
        (
            {
                "downwardAPI": {
                    "items": [
                        {
                            "path": "memory",
                            "resourceFieldRef": {
                                "containerName": "main",
                                "resource": "limits.memory",
                                "divisor": "1Mi",
                            },
                        }
                    ]
                }
            },
            {"memory": File(b"64", 0o644)},
        ),
        (
            {
                "projected": {
                    "defaultMode": 0o440,
                    "sources": [
                        {"secret": {"name": "secret"}},
                        {"configMap": {"name": "config", "items": [{"key": "one", "path": "1"}]}},
                        {"serviceAccountToken": {"path": "token", "audience": "us"}},
                    ],
                }
            },
            {"password": File(b"hush", 0o440), "1": File(b"1", 0o440), "token": File(b"token for us 3600", 0o440)},
        ),
    ],
)
async def test_volume_has_its_files(volume: Object, files: dict[str, File]) -> None:
    assert await project(volume, sources()) == files


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        ({"configMap": {"name": "config", "items": [{"key": "x", "path": "x"}]}}, 'configmap "config" has no key "x"'),
        ({"configMap": {"name": "config", "items": [{"key": "one", "path": "../x"}]}}, "is not a path inside a volume"),
        ({"configMap": {"name": "config", "items": [{"key": "one", "path": "/x"}]}}, "is not a path inside a volume"),
        (
            {"projected": {"sources": [{"clusterTrustBundle": {}}]}},
            "projected volumes do not support clusterTrustBundle",
        ),
        (
            {
                "downwardAPI": {
                    "items": [{"path": "x", "resourceFieldRef": {"containerName": "other", "resource": "limits.cpu"}}]
                }
            },
            'unknown container "other"',
        ),
    ],
)
async def test_missing_sources_are_named(volume: dict[str, Any], message: str) -> None:
    with pytest.raises(VolumeFailure, match=message):
        await project(volume, sources())
