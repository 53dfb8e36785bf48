"""Sources of environment variables and projected files: fields of the pod, keys of ConfigMaps and Secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, invalid, not_supported, required
from sandpool.api.quantity import canonical
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import fill_empty, inside

_FIELDS_OF_VARIABLES: Final = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_FIELDS_OF_FILES: Final = (
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
)
_RESOURCES: Final = (
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
)
_KNOWN_FIELDS: Final = frozenset((*_FIELDS_OF_VARIABLES, *_FIELDS_OF_FILES))
_SUBSCRIPTED: Final = re.compile(r"(.+)\['(.+)'\]")
_BYTE_DIVISORS: Final = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei"
_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


def default_field_reference(reference: Object) -> Object:
    return fill_empty(reference, {"apiVersion": "v1"})


def default_resource_reference(reference: Object) -> Object:
    return inside(fill_empty(reference, {"divisor": "0"}), "divisor", canonical)


def default_value_source(source: Object) -> Object:
    source = inside(source, "fieldRef", default_field_reference)
    return inside(source, "resourceFieldRef", default_resource_reference)


# A downward API file names its source as an environment variable does.
default_downward_file = default_value_source


def validate_value_source(variable: Object, path: str) -> Iterator[Cause]:
    source = variable.get("valueFrom")
    if source is None:
        return
    if (field := source.get("fieldRef")) is not None:
        yield from _validate_field(field, _FIELDS_OF_VARIABLES, f"{path}.fieldRef")
    if (resource := source.get("resourceFieldRef")) is not None:
        yield from _validate_resource(resource, f"{path}.resourceFieldRef", file=False)
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if (key := source.get(kind)) is not None:
            yield from _validate_key(key, f"{path}.{kind}")
    given = sum(source.get(kind) is not None for kind in _SOURCES)
    if not given:
        one_of = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        yield invalid(path, "", f"must specify one of: {one_of}")
    elif variable.get("value"):
        yield invalid(path, "", "may not be specified when `value` is not empty")
    elif given > 1:
        yield invalid(path, "", "may not have more than one field specified at a time")


def _validate_field(reference: Object, allowed: tuple[str, ...], path: str) -> Iterator[Cause]:
    field = reference.get("fieldPath")
    if not field:
        yield required(f"{path}.fieldPath")
        return
    match = _SUBSCRIPTED.fullmatch(field)
    known = match[1] in ("metadata.annotations", "metadata.labels") if match else field in _KNOWN_FIELDS
    if not known:
        why = f"error converting fieldPath: field label not supported: {field}"
        yield invalid(f"{path}.fieldPath", field, why)
    elif match:
        key = match[2].lower() if match[1] == "metadata.annotations" else match[2]
        for why in names.qualified_name(key):
            yield invalid(path, key, why)
    elif field not in allowed:
        yield not_supported(f"{path}.fieldPath", field, allowed)


def _validate_resource(reference: Object, path: str, *, file: bool) -> Iterator[Cause]:
    resource = reference.get("resource")
    if file and not reference.get("containerName"):
        yield required(f"{path}.containerName")
    elif not resource:
        yield required(f"{path}.resource")
    elif resource not in _RESOURCES and not resource.startswith(("limits.hugepages-", "requests.hugepages-")):
        yield not_supported(f"{path}.resource", resource, _RESOURCES)
    divisor = reference.get("divisor") or "0"
    if divisor == "0" or not resource:
        return
    what = resource.partition(".")[2]
    if what == "cpu":
        if divisor not in ("1m", "1"):
            why = "only divisor's values 1m and 1 are supported with the cpu resource"
            yield invalid(f"{path}.divisor", resource, why)
    elif divisor not in _BYTE_DIVISORS.split(", "):
        kind = {"memory": "memory", "ephemeral-storage": "local ephemeral storage"}.get(what, "hugepages")
        why = f"only divisor's values {_BYTE_DIVISORS} are supported with the {kind} resource"
        yield invalid(f"{path}.divisor", resource, why)


def _validate_key(reference: Object, path: str) -> Iterator[Cause]:
    name = reference.get("name") or ""
    for why in names.subdomain(name):
        yield invalid(f"{path}.name", name, why)
    if not reference.get("key"):
        yield required(f"{path}.key")
    else:
        for why in names.config_key(reference["key"]):
            yield invalid(f"{path}.key", reference["key"], why)


def validate_key_to_path(item: Object, path: str) -> Iterator[Cause]:
    if not item.get("key"):
        yield required(f"{path}.key")
    if not item.get("path"):
        yield required(f"{path}.path")
    yield from validate_inner_path(item.get("path") or "", f"{path}.path")


def validate_downward_file(file: Object, path: str) -> Iterator[Cause]:
    if not file.get("path"):
        yield required(f"{path}.path")
    yield from validate_inner_path(file.get("path") or "", f"{path}.path")
    field, resource = file.get("fieldRef"), file.get("resourceFieldRef")
    if field is not None:
        yield from _validate_field(field, _FIELDS_OF_FILES, f"{path}.fieldRef")
        if resource is not None:
            yield invalid(path, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
    elif resource is not None:
        yield from _validate_resource(resource, f"{path}.resourceFieldRef", file=True)
    else:
        yield required(path, "one of fieldRef and resourceFieldRef is required")


def validate_descending_path(target: str, path: str) -> Iterator[Cause]:
    """Validate that a relative path stays inside its volume."""
    if target.startswith("/"):
        yield invalid(path, target, "must be a relative path")
    if ".." in target.split("/"):
        yield invalid(path, target, "must not contain '..'")


def validate_inner_path(target: str, path: str) -> Iterator[Cause]:
    """Validate the path of a projected file. Names that start with two dots are reserved for the kubelet."""
    yield from validate_descending_path(target, path)
    if target.startswith("..") and not target.startswith("../") and target != "..":
        yield invalid(path, target, "must not start with '..'")
