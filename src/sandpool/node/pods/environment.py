"""Environment variables of a container, from all the sources a pod may name, in kubelet's order.

The image's variables come first and lose against all others. Then come ``envFrom`` and ``env``, where a value may refer
to variables before it. Service links apply only where no other source sets the name.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sandpool.api.kinds import CONFIG_MAP, SECRET
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.node.pods.downward import PodPlacement, UnknownField, field_value, resource_value
from sandpool.node.pods.expansion import expand


class ConfigError(Exception):
    """A container cannot be created as specified until an object it refers to changes."""


class Source(NamedTuple):
    """An object that variables come from."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class EnvironmentSources:
    """Everything outside a container that its variables may come from. A source that does not exist is None."""

    pod: SharedObject
    placement: PodPlacement
    allocatable: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[Source, SharedObject | None] = field(default_factory=dict)
    service_links: Mapping[str, str] = field(default_factory=dict)


def sources_of(container: Object) -> frozenset[Source]:
    """Return the objects to fetch before the variables can be computed."""
    found = set()
    for each in container.get("envFrom") or ():
        found |= {source for source, _ in _named(each, "configMapRef", "secretRef")}
    for variable in container.get("env") or ():
        found |= {source for source, _ in _named(variable.get("valueFrom") or {}, "configMapKeyRef", "secretKeyRef")}
    return frozenset(found)


def environment(container: Object, sources: EnvironmentSources) -> dict[str, str]:
    """Return the variables that the pod gives a container. The caller adds those of the image beneath them. Raises
    ``ConfigError``."""
    found: dict[str, str] = {}
    for each in container.get("envFrom") or ():
        for source, reference in _named(each, "configMapRef", "secretRef"):
            entries = _entries(source, reference, sources)
            prefix = each.get("prefix") or ""
            found.update({prefix + key: value for key, value in entries.items()})
    for variable in container.get("env") or ():
        known = {**sources.service_links, **found}
        value = _value(container, variable, known, sources)
        if value is not None:
            found[variable["name"]] = value
    return {**sources.service_links, **found}


def _value(container: Object, variable: Object, known: Mapping[str, str], sources: EnvironmentSources) -> str | None:
    """Return the value of a variable, or None if an optional source is missing."""
    origin = variable.get("valueFrom")
    if not origin:
        return expand(variable.get("value") or "", known)
    for source, reference in _named(origin, "configMapKeyRef", "secretKeyRef"):
        entries = _entries(source, reference, sources)
        key = reference["key"]
        if key not in entries and not reference.get("optional"):
            namespace = sources.pod["metadata"]["namespace"]
            raise ConfigError(f"couldn't find key {key} in {source.type.kind} {namespace}/{source.name}")
        return entries.get(key)
    try:
        if "fieldRef" in origin:
            return field_value(sources.pod, origin["fieldRef"]["fieldPath"], sources.placement)
        if "resourceFieldRef" in origin:
            reference = origin["resourceFieldRef"]
            sent = _container(sources.pod, reference.get("containerName") or "") or container
            return resource_value(sent, reference, sources.allocatable)
    except UnknownField as error:
        raise ConfigError(str(error)) from None
    raise ConfigError(f"the value of {variable['name']} comes from {', '.join(origin)}, which is not supported")


def _named(holder: Object, config_map: str, secret: str) -> Iterator[tuple[Source, Object]]:
    for type, member in ((CONFIG_MAP, config_map), (SECRET, secret)):
        if reference := holder.get(member):
            yield Source(type, reference.get("name") or ""), reference


def _entries(source: Source, reference: Object, sources: EnvironmentSources) -> dict[str, str]:
    found = sources.sources.get(source)
    if found is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{source.type.kind.lower()} "{source.name}" not found')
    if source.type is SECRET:
        # Variables are bytes to the kernel; surrogateescape keeps bytes that are not UTF-8.
        data = found.get("data") or {}
        return {key: base64.b64decode(value).decode(errors="surrogateescape") for key, value in data.items()}
    return dict(found.get("data") or {})


def _container(pod: SharedObject, name: str) -> Object | None:
    spec = pod["spec"]
    every = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return next((container for container in every if container["name"] == name), None)
