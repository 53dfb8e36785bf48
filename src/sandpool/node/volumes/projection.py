"""Files of volumes that are made of API objects: configMap, secret, downwardAPI and projected.

A missing object or key is a ``VolumeFailure`` that names it, unless the volume marks it as optional.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from posixpath import isabs
from typing import Final

from sandpool.api.resource import Object, SharedObject
from sandpool.node.pods.downward import PodPlacement, field_value, resource_value
from sandpool.node.pods.interfaces import VolumeFailure

DEFAULT_MODE: Final = 0o644
#: Default lifetime of a token in seconds.
TOKEN_SECONDS: Final = 3600

KINDS: Final = ("configMap", "secret", "downwardAPI", "projected")


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the content of one pod's volumes. Missing objects are None. ``token`` takes an audience (empty:
    that of the API) and a lifetime in seconds."""

    config_map: Callable[[str], Awaitable[SharedObject | None]]
    secret: Callable[[str], Awaitable[SharedObject | None]]
    token: Callable[[str, int], Awaitable[str]]
    pod: SharedObject
    placement: PodPlacement
    allocatable: Mapping[str, str]


async def project(volume: Object, sources: Sources) -> dict[str, File]:
    """Return the files of a volume by path."""
    for kind in KINDS[:3]:
        if (source := volume.get(kind)) is not None:
            named = {"name": source.get("secretName") or "", **source} if kind == "secret" else source
            return await _part(kind, named, source.get("defaultMode") or DEFAULT_MODE, sources)
    projected = volume["projected"]
    mode = projected.get("defaultMode") or DEFAULT_MODE
    files: dict[str, File] = {}
    for source in projected.get("sources") or ():
        for kind, part in source.items():
            files |= await _part(kind, part, mode, sources)
    return files


async def _part(kind: str, source: Object, mode: int, sources: Sources) -> dict[str, File]:
    match kind:
        case "configMap":
            found = await sources.config_map(source.get("name") or "")
            return _chosen("configmap", source, found, mode)
        case "secret":
            found = await sources.secret(source.get("name") or "")
            return _chosen("secret", source, found, mode)
        case "downwardAPI":
            return {item["path"]: _downward(item, mode, sources) for item in source.get("items") or ()}
        case "serviceAccountToken":
            seconds = source.get("expirationSeconds") or TOKEN_SECONDS
            token = await sources.token(source.get("audience") or "", seconds)
            return {source["path"]: File(token.encode(), mode)}
    raise VolumeFailure(f"projected volumes do not support {kind}")


def _chosen(kind: str, source: Object, found: SharedObject | None, mode: int) -> dict[str, File]:
    optional = bool(source.get("optional"))
    if found is None:
        if optional:
            return {}
        raise VolumeFailure(f'{kind} "{source.get("name")}" not found')
    data = _data(found)
    items = source.get("items")
    if not items:
        return {key: File(content, mode) for key, content in data.items()}
    files = {}
    for item in items:
        if item["key"] in data:
            files[_inside(item["path"])] = File(data[item["key"]], item.get("mode") or mode)
        elif not optional:
            raise VolumeFailure(f'{kind} "{source.get("name")}" has no key "{item["key"]}"')
    return files


def _data(found: SharedObject) -> dict[str, bytes]:
    """Return the content of a ConfigMap or Secret. Data of a ConfigMap is plain text, all other data is base64."""
    is_secret = found.get("kind") == "Secret"
    encoded: Mapping[str, str] = found.get("data" if is_secret else "binaryData") or {}
    texts: Mapping[str, str] = {} if is_secret else found.get("data") or {}
    return {
        **{key: text.encode() for key, text in texts.items()},
        **{key: base64.b64decode(text) for key, text in encoded.items()},
    }


def _downward(item: Object, mode: int, sources: Sources) -> File:
    if (field := item.get("fieldRef")) is not None:
        value = field_value(sources.pod, field["fieldPath"], sources.placement)
    else:
        reference = item["resourceFieldRef"]
        containers = [*(sources.pod["spec"].get("initContainers") or ()), *sources.pod["spec"]["containers"]]
        container = next((each for each in containers if each["name"] == reference.get("containerName")), None)
        if container is None:
            raise VolumeFailure(f'resourceFieldRef refers to an unknown container "{reference.get("containerName")}"')
        value = resource_value(container, reference, sources.allocatable)
    return File(value.encode(), item.get("mode") or mode)


def _inside(path: str) -> str:
    """Check that a path stays inside the volume. The API validates it too, but this writes as root."""
    if not path or isabs(path) or ".." in path.split("/"):
        raise VolumeFailure(f'"{path}" is not a path inside a volume')
    return path
