"""Pod fields that this node does not support. A pod that sets one is rejected and the field is named: without the field
the pod would differ from what its author expects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

from sandpool.api.resource import Object, SharedObject
from sandpool.node.pods.spec import ALWAYS

REASON: Final = "UnsupportedField"

_VOLUMES: Final = frozenset(
    {"name", "emptyDir", "configMap", "secret", "projected", "downwardAPI", "persistentVolumeClaim"}
)
_PROJECTED: Final = frozenset({"configMap", "secret", "downwardAPI", "serviceAccountToken"})
_MEDIA: Final = (None, "", "Memory")
_OWN_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


class UnsupportedField(NamedTuple):
    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


def find_unsupported(
    pod: SharedObject, *, host_paths: bool, resources: Collection[str], simulated: bool = False
) -> list[UnsupportedField]:
    """Return every unsupported field, in the order of the spec. ``host_paths`` allows hostPath volumes, ``resources``
    are those of the node. Nothing runs in the containers of a ``simulated`` pod."""
    spec = pod["spec"]
    return [
        *_pod_fields(spec),
        *_pod_security(spec.get("securityContext") or {}),
        *_volumes(spec, host_paths),
        *(_never_ending(spec) if simulated else ()),
        *(
            rejection
            for kind in ("initContainers", "containers", "ephemeralContainers")
            for index, container in enumerate(spec.get(kind) or ())
            for rejection in _container(container, f"spec.{kind}[{index}]", kind, resources)
        ),
    ]


def find_unsupported_changes(before: SharedObject, after: SharedObject) -> list[UnsupportedField]:
    """Return changes to a running pod that cannot be applied. The pod continues unchanged."""
    found = []
    debugging = after["spec"].get("ephemeralContainers") or []
    if len(debugging) > len(before["spec"].get("ephemeralContainers") or []):
        found.append(UnsupportedField(f"spec.ephemeralContainers[{len(debugging) - 1}]", _NOT_ADDED))
    for kind in ("initContainers", "containers"):
        pairs = zip(before["spec"].get(kind) or (), after["spec"].get(kind) or (), strict=False)
        for index, (old, new) in enumerate(pairs):
            if (old.get("resources") or {}) != (new.get("resources") or {}):
                found.append(
                    UnsupportedField(f"spec.{kind}[{index}].resources", "a container that runs keeps what it has")
                )
    return found


def message(found: list[UnsupportedField]) -> str:
    return "this node does not support " + "; ".join(map(str, found))


def _true(value: Any) -> bool:
    return value is True


_NOT_ADDED: Final = "containers cannot be added to a pod that runs"
_NO_VOLUMES: Final = "volumes of this kind are not available"
_SHARES_HOST: Final = "a sandbox shares nothing with the host"
_POD_FIELDS: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("hostNetwork", _true, _SHARES_HOST),
    ("hostPID", _true, _SHARES_HOST),
    ("hostIPC", _true, _SHARES_HOST),
    ("shareProcessNamespace", _true, "containers of a pod do not see each other's processes"),
    ("resourceClaims", bool, "devices are not available"),
    ("schedulingGroup", bool, "pods are placed one by one"),
    ("resources", bool, "resources are asked for by containers"),
)


def _pod_fields(spec: Object) -> Iterator[UnsupportedField]:
    for field, unsupported, why in _POD_FIELDS:
        if unsupported(spec.get(field)):
            yield UnsupportedField(f"spec.{field}", why)
    if (spec.get("os") or {}).get("name") not in (None, "linux"):
        yield UnsupportedField("spec.os.name", "the node runs Linux")


def _pod_security(security: Object) -> Iterator[UnsupportedField]:
    at = "spec.securityContext"
    if security.get("sysctls"):
        yield UnsupportedField(f"{at}.sysctls", "kernel parameters cannot be set")
    if security.get("supplementalGroups"):
        yield UnsupportedField(f"{at}.supplementalGroups", "processes of a sandbox have one group")
    yield from _profiles(security, at)


def _profiles(security: Object, at: str) -> Iterator[UnsupportedField]:
    if (security.get("seccompProfile") or {}).get("type") not in (None, "RuntimeDefault"):
        yield UnsupportedField(f"{at}.seccompProfile.type", "only RuntimeDefault is offered, and it always holds")
    if (security.get("appArmorProfile") or {}).get("type") not in (None, "RuntimeDefault"):
        yield UnsupportedField(f"{at}.appArmorProfile.type", "AppArmor profiles cannot be chosen")
    for field in ("seLinuxOptions", "windowsOptions"):
        if security.get(field):
            yield UnsupportedField(f"{at}.{field}", "not available")


def _volumes(spec: Object, host_paths: bool) -> Iterator[UnsupportedField]:
    allowed = _VOLUMES | {"hostPath"} if host_paths else _VOLUMES
    for index, volume in enumerate(spec.get("volumes") or ()):
        for kind in volume.keys() - allowed:
            why = "not allowed on this node" if kind == "hostPath" else _NO_VOLUMES
            yield UnsupportedField(f"spec.volumes[{index}].{kind}", why)
        yield from _volume(volume, f"spec.volumes[{index}]")


def _volume(volume: Object, at: str) -> Iterator[UnsupportedField]:
    """Yield unsupported options of a supported kind of volume."""
    if (volume.get("emptyDir") or {}).get("medium") not in _MEDIA:
        yield UnsupportedField(f"{at}.emptyDir.medium", "there is the node's disk, and Memory")
    if str((volume.get("hostPath") or {}).get("type") or "").endswith("OrCreate"):
        yield UnsupportedField(f"{at}.hostPath.type", "nothing is made on the host")
    for index, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
        for kind in source.keys() - _PROJECTED:
            yield UnsupportedField(f"{at}.projected.sources[{index}].{kind}", _NO_VOLUMES)


def _never_ending(spec: Object) -> Iterator[UnsupportedField]:
    for index, container in enumerate(spec.get("initContainers") or ()):
        if container.get("restartPolicy") != ALWAYS:
            yield UnsupportedField(
                f"spec.initContainers[{index}]", "nothing runs in a simulated pod, so it would never end"
            )


def _container(container: Object, at: str, kind: str, resources: Collection[str]) -> Iterator[UnsupportedField]:
    if kind == "ephemeralContainers":
        yield UnsupportedField(at, _NOT_ADDED)
        return
    policy = container.get("restartPolicy")
    if policy and (kind != "initContainers" or policy != ALWAYS):
        yield UnsupportedField(f"{at}.restartPolicy", "only init containers have one, and only Always")
    if container.get("restartPolicyRules"):
        yield UnsupportedField(f"{at}.restartPolicyRules", "not available")
    if container.get("volumeDevices"):
        yield UnsupportedField(f"{at}.volumeDevices", "block devices are not available")
    for index, variable in enumerate(container.get("env") or ()):
        if (variable.get("valueFrom") or {}).get("fileKeyRef"):
            yield UnsupportedField(f"{at}.env[{index}].valueFrom.fileKeyRef", "variables are known before files are")
    for index, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            yield UnsupportedField(f"{at}.ports[{index}].hostPort", "ports of the host are not given to pods")
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("mountPropagation") not in (None, "None"):
            yield UnsupportedField(
                f"{at}.volumeMounts[{index}].mountPropagation", "mounts are never shared with the host"
            )
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if (container.get(probe) or {}).get("grpc"):
            yield UnsupportedField(f"{at}.{probe}.grpc", "use exec, httpGet or tcpSocket")
    yield from _container_security(container.get("securityContext") or {}, f"{at}.securityContext")
    wanted = container.get("resources") or {}
    if wanted.get("claims"):
        yield UnsupportedField(f"{at}.resources.claims", "devices are not available")
    for name in sorted((wanted.get("limits") or {}).keys() | (wanted.get("requests") or {}).keys()):
        if name not in _OWN_RESOURCES and name not in resources:
            yield UnsupportedField(f"{at}.resources", f"the node has no {name}")


def _container_security(security: Object, at: str) -> Iterator[UnsupportedField]:
    if security.get("privileged"):
        yield UnsupportedField(f"{at}.privileged", _SHARES_HOST)
    if (security.get("capabilities") or {}).get("add"):
        yield UnsupportedField(f"{at}.capabilities.add", "processes of a sandbox have no capabilities")
    if security.get("procMount") not in (None, "Default"):
        yield UnsupportedField(f"{at}.procMount", "only Default is offered")
    yield from _profiles(security, at)
