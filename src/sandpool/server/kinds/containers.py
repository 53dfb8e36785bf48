"""Containers of a pod (regular, init, ephemeral): defaults and validation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sandpool.api.causes import Cause, duplicate, forbidden, invalid, not_found, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import each, fill_absent, fill_empty, inside
from sandpool.server.kinds.probes import (
    PROBES,
    default_lifecycle,
    default_probe,
    validate_lifecycle,
    validate_probes,
)
from sandpool.server.kinds.resource_requirements import default_requirements, validate_requirements
from sandpool.server.kinds.security_contexts import validate_security_context
from sandpool.server.kinds.value_sources import default_value_source, validate_descending_path, validate_value_source

PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES: Final = ("File", "FallbackToLogsOnError")
_PROPAGATIONS: Final = ("Bidirectional", "HostToContainer", "None")
_RESTART_POLICIES: Final = ("Always", "Never", "OnFailure")
_PORT_RANGE: Final = "must be between 1 and 65535, inclusive"
# Fields that an ephemeral container may not set: it is not part of the pod's lifecycle.
_NOT_EPHEMERAL: Final = ("ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resizePolicy")


@dataclass(frozen=True)
class ContainerContext:
    """The parts of the pod that a container is validated against."""

    volumes: Mapping[str, Object]
    grace: int | None = None
    host_users: bool = True


def default_container(container: Object) -> Object:
    container = fill_absent(container, {"resources": {}})
    container = fill_empty(
        container,
        {
            "imagePullPolicy": pull_policy(container.get("image") or ""),
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        },
    )
    container = inside(container, "resources", default_requirements)
    container = inside(container, "ports", lambda ports: each(ports, default_port))
    container = inside(container, "env", lambda variables: each(variables, _default_variable))
    for probe in PROBES:
        container = inside(container, probe, default_probe)
    return inside(container, "lifecycle", default_lifecycle)


def default_port(port: Object) -> Object:
    return fill_empty(port, {"protocol": "TCP"})


def _default_variable(variable: Object) -> Object:
    return inside(variable, "valueFrom", default_value_source)


def validate_containers(containers: list[Object], context: ContainerContext, path: str) -> Iterator[Cause]:
    if not containers:
        yield required(path)
    seen: set[str] = set()
    host_ports: set[str] = set()
    for index, container in enumerate(containers):
        at = f"{path}[{index}]"
        yield from _validate_container(container, context, at)
        if container.get("name") in seen:
            yield duplicate(f"{at}.name", container["name"])
        seen.add(container.get("name") or "")
        if (lifecycle := container.get("lifecycle")) is not None:
            yield from validate_lifecycle(lifecycle, context.grace, f"{at}.lifecycle")
        yield from validate_probes(container, context.grace, at)
        yield from _validate_restart_policy(container, at)
    for index, container in enumerate(containers):
        yield from _validate_host_ports(container, host_ports, f"{path}[{index}].ports")


def validate_init_containers(
    containers: list[Object], regular: list[Object], context: ContainerContext, path: str
) -> Iterator[Cause]:
    seen = {container.get("name") for container in regular}
    for index, container in enumerate(containers):
        at = f"{path}[{index}]"
        yield from _validate_container(container, context, at)
        yield from _validate_restart_policy(container, at)
        if container.get("name") in seen:
            yield duplicate(f"{at}.name", container["name"])
        elif container.get("name"):
            seen.add(container["name"])
        yield from _validate_host_ports(container, set(), f"{path}[0].ports")
        if container.get("restartPolicy") == "Always":
            if (lifecycle := container.get("lifecycle")) is not None:
                yield from validate_lifecycle(lifecycle, context.grace, f"{at}.lifecycle")
            yield from validate_probes(container, context.grace, at)
        else:
            for field in ("lifecycle", *PROBES):
                if container.get(field) is not None:
                    why = "may not be set for init containers without restartPolicy=Always"
                    yield forbidden(f"{at}.{field}", why)


def validate_ephemeral_containers(
    containers: list[Object], others: list[Object], context: ContainerContext, path: str
) -> Iterator[Cause]:
    targets = {container.get("name") for container in others}
    seen = set(targets)
    for index, container in enumerate(containers):
        at = f"{path}[{index}]"
        yield from _validate_container(container, context, at)
        yield from validate_image_padding(container, at)
        if container.get("name") in seen:
            yield duplicate(f"{at}.name", container.get("name"))
        seen.add(container.get("name"))
        target = container.get("targetContainerName")
        if target and target not in targets:
            yield not_found(f"{at}.targetContainerName", target)
        refused = [field for field in _NOT_EPHEMERAL if container.get(field)]
        refused += ["resources"] if container.get("resources") else []
        yield from (forbidden(f"{at}.{field}", "cannot be set for an Ephemeral Container") for field in refused)
        for position, mount in enumerate(container.get("volumeMounts") or ()):
            for field in ("subPath", "subPathExpr"):
                if mount.get(field):
                    why = "cannot be set for an Ephemeral Container"
                    yield forbidden(f"{at}.volumeMounts[{position}].{field}", why)


def validate_image_padding(container: Object, path: str) -> Iterator[Cause]:
    """Validate that an image has no surrounding whitespace. Not for templates, which predate this rule."""
    image = container.get("image") or ""
    if image != image.strip():
        yield invalid(f"{path}.image", image, "must not have leading or trailing whitespace")


def _validate_container(container: Object, context: ContainerContext, path: str) -> Iterator[Cause]:
    name = container.get("name")
    if not name:
        yield required(f"{path}.name")
    else:
        yield from (invalid(f"{path}.name", name, why) for why in names.label(name))
    if not container.get("image"):
        yield required(f"{path}.image")
    policy = container.get("terminationMessagePolicy")
    if policy not in _MESSAGE_POLICIES:
        yield not_supported(f"{path}.terminationMessagePolicy", policy, _MESSAGE_POLICIES)
    yield from _validate_ports(container.get("ports") or [], f"{path}.ports")
    yield from validate_environment(container, path)
    yield from _validate_mounts(container, context.volumes, path)
    yield from _validate_devices(container, context.volumes, path)
    if container.get("imagePullPolicy") not in _PULL_POLICIES:
        yield not_supported(f"{path}.imagePullPolicy", container.get("imagePullPolicy"), _PULL_POLICIES)
    yield from validate_requirements(container.get("resources") or {}, f"{path}.resources")
    if (security := container.get("securityContext")) is not None:
        yield from validate_security_context(security, f"{path}.securityContext", host_users=context.host_users)


def _validate_restart_policy(container: Object, path: str) -> Iterator[Cause]:
    policy = container.get("restartPolicy")
    if policy is None:
        if container.get("restartPolicyRules"):
            yield required(f"{path}.restartPolicy", "must specify restartPolicy when restart rules are used")
    elif policy not in _RESTART_POLICIES:
        yield not_supported(f"{path}.restartPolicy", policy, _RESTART_POLICIES)


def _validate_ports(ports: list[Object], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, port in enumerate(ports):
        at = f"{path}[{index}]"
        if name := port.get("name"):
            wrong = names.port_name(name)
            yield from (invalid(f"{at}.name", name, why) for why in wrong)
            if not wrong and name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name)
        if not port.get("containerPort"):
            yield required(f"{at}.containerPort")
        for field in ("containerPort", "hostPort"):
            if port.get(field) and not 1 <= port[field] <= 65535:
                yield invalid(f"{at}.{field}", port[field], _PORT_RANGE)
        if port.get("protocol") not in PROTOCOLS:
            yield not_supported(f"{at}.protocol", port.get("protocol"), PROTOCOLS)


def _validate_host_ports(container: Object, taken: set[str], path: str) -> Iterator[Cause]:
    for index, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            key = f"{port.get('protocol')}/{port.get('hostIP') or ''}/{port['hostPort']}"
            if key in taken:
                yield duplicate(f"{path}[{index}].hostPort", key)
            taken.add(key)


def validate_environment(container: Object, path: str) -> Iterator[Cause]:
    for index, variable in enumerate(container.get("env") or ()):
        at, name = f"{path}.env[{index}]", variable.get("name")
        if not name:
            yield required(f"{at}.name")
        else:
            yield from (invalid(f"{at}.name", name, why) for why in names.environment_variable(name))
        yield from validate_value_source(variable, f"{at}.valueFrom")
    for index, source in enumerate(container.get("envFrom") or ()):
        at = f"{path}.envFrom[{index}]"
        if prefix := source.get("prefix"):
            yield from (invalid(f"{at}.prefix", prefix, why) for why in names.environment_variable(prefix))
        given = [kind for kind in ("configMapRef", "secretRef") if source.get(kind) is not None]
        for kind in given:
            name = source[kind].get("name")
            if not name:
                yield required(f"{at}.{kind}.name")
            else:
                yield from (invalid(f"{at}.{kind}.name", name, why) for why in names.subdomain(name))
        if not given:
            yield invalid(f"{path}.envFrom", "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(given) > 1:
            yield invalid(f"{path}.envFrom", "", "may not have more than one field specified at a time")


def _validate_mounts(container: Object, volumes: Mapping[str, Object], path: str) -> Iterator[Cause]:
    devices = {device.get("name"): device.get("devicePath") for device in container.get("volumeDevices") or ()}
    list_path, seen = f"{path}.volumeMounts", set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        at = f"{list_path}[{index}]"
        name, target = mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            yield required(f"{at}.name")
        if name not in volumes:
            yield not_found(f"{at}.name", name)
        if not target:
            yield required(f"{at}.mountPath")
        if target in seen:
            yield invalid(f"{at}.mountPath", target, "must be unique")
        seen.add(target)
        if name in devices:
            yield invalid(f"{at}.name", name, "must not already exist in volumeDevices")
        if target in devices.values():
            yield invalid(f"{at}.mountPath", target, "must not already exist as a path in volumeDevices")
        if mount.get("subPath") and mount.get("subPathExpr"):
            why = "subPathExpr and subPath are mutually exclusive"
            yield invalid(f"{at}.subPathExpr", mount["subPathExpr"], why)
        for field in ("subPath", "subPathExpr"):
            yield from validate_descending_path(mount.get(field) or "", f"{list_path}.{field}")
        yield from _validate_propagation(mount, container, list_path)


def _validate_propagation(mount: Object, container: Object, path: str) -> Iterator[Cause]:
    mode = mount.get("mountPropagation")
    if mode is not None and mode not in _PROPAGATIONS:
        yield not_supported(f"{path}.mountPropagation", mode, _PROPAGATIONS)
    if mode == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
        why = "Bidirectional mount propagation is available only to privileged containers"
        yield forbidden(f"{path}.mountPropagation", why)
    deep = mount.get("recursiveReadOnly")
    if deep in ("Enabled", "IfPossible"):
        if not mount.get("readOnly"):
            yield forbidden(f"{path}.recursiveReadOnly", "may only be specified when readOnly is true")
    elif deep not in (None, "Disabled"):
        yield not_supported(f"{path}.recursiveReadOnly", deep, ("Disabled", "Enabled", "IfPossible"))


def _validate_devices(container: Object, volumes: Mapping[str, Object], path: str) -> Iterator[Cause]:
    for index, device in enumerate(container.get("volumeDevices") or ()):
        at, name = f"{path}.volumeDevices[{index}]", device.get("name") or ""
        volume = volumes.get(name)
        if volume is None:
            yield not_found(f"{at}.name", name)
        elif not {"persistentVolumeClaim", "ephemeral"} & volume.keys():
            why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            yield invalid(f"{at}.name", name, why)
        if not device.get("devicePath"):
            yield required(f"{at}.devicePath")


_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?P<digest>@[A-Za-z0-9+._-]+:[0-9a-fA-F]{32,})?"
)


def pull_policy(image: str) -> str:
    """The default imagePullPolicy: Always for the tag ``latest``, which may move."""
    match = _REFERENCE.fullmatch(image)
    if match is None:
        return "IfNotPresent"
    latest = match["tag"] == "latest" or (match["tag"] is None and match["digest"] is None)
    return "Always" if latest else "IfNotPresent"
