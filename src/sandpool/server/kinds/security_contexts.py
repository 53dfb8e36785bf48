"""Validation of the security contexts of pods and containers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sandpool.api.causes import Cause, duplicate, forbidden, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server.kinds.value_sources import validate_descending_path

_LARGEST_ID: Final = 2**31 - 1
_PROFILE_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_NOT_AN_ID: Final = f"must be between 0 and {_LARGEST_ID}, inclusive"


def validate_security_context(context: Object, path: str, *, host_users: bool = True) -> Iterator[Cause]:
    """Validate the security context of a container."""
    for field in ("runAsUser", "runAsGroup"):
        yield from _validate_id(context.get(field), f"{path}.{field}")
    mount = context.get("procMount")
    if mount is not None and mount not in ("Default", "Unmasked"):
        yield not_supported(f"{path}.procMount", mount, ("Default", "Unmasked"))
    if mount == "Unmasked" and host_users:
        yield invalid(f"{path}.procMount", mount, "`hostUsers` must be false to use `Unmasked`")
    yield from _validate_profiles(context, path)
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            yield invalid(path, context, why)
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            yield invalid(path, context, why)


def validate_pod_security_context(context: Object, spec: Object, path: str) -> Iterator[Cause]:
    for field in ("fsGroup", "runAsUser", "runAsGroup"):
        yield from _validate_id(context.get(field), f"{path}.{field}")
    for index, group in enumerate(context.get("supplementalGroups") or ()):
        yield from _validate_id(group, f"{path}.supplementalGroups[{index}]")
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        why = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield invalid("spec.shareProcessNamespace", True, why)
    policies = ("Always", "OnRootMismatch")
    if context.get("fsGroupChangePolicy") is not None and context["fsGroupChangePolicy"] not in policies:
        yield not_supported(f"{path}.fsGroupChangePolicy", context["fsGroupChangePolicy"], policies)
    yield from _validate_sysctls(context.get("sysctls") or [], path)
    yield from _validate_profiles(context, path)


def _validate_sysctls(sysctls: list[Object], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        name = sysctl.get("name") or ""
        if not name:
            yield required(f"{path}.sysctls[{index}].name")
        elif name in seen:
            yield duplicate(f"{path}.sysctls[{index}].name", name)
        seen.add(name)


def _validate_id(value: Any, path: str) -> Iterator[Cause]:
    if value is not None and not 0 <= value <= _LARGEST_ID:
        yield invalid(path, value, _NOT_AN_ID)


def _validate_profiles(context: Object, path: str) -> Iterator[Cause]:
    for field, product in (("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")):
        if (profile := context.get(field)) is not None:
            yield from _validate_profile(profile, product, f"{path}.{field}")


def _validate_profile(profile: Object, product: str, path: str) -> Iterator[Cause]:
    kind, given = profile.get("type") or "", profile.get("localhostProfile")
    if not kind:
        yield required(f"{path}.type", f"type is required when {path.rpartition('.')[2]} is set")
    elif kind not in _PROFILE_TYPES:
        yield not_supported(f"{path}.type", kind, _PROFILE_TYPES)
    if kind == "Localhost":
        if not given:
            yield required(f"{path}.localhostProfile", f"must be set when {product} type is Localhost")
        elif product == "seccomp":
            yield from validate_descending_path(given, f"{path}.localhostProfile")
    elif given is not None:
        shown = profile if product == "seccomp" else given
        yield invalid(f"{path}.localhostProfile", shown, f"can only be set when {product} type is Localhost")


def validate_host_users(spec: Object, path: str) -> Iterator[Cause]:
    """Validate that a pod with its own user namespace shares no other namespace of the host."""
    if spec.get("hostUsers") is not False:
        return
    for field, name in (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")):
        if spec.get(field):
            yield forbidden(f"{path}.{name}", "when `hostUsers` is false")
