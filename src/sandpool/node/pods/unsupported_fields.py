"""What a pod may ask for and this node does not do. A pod that asks for it is refused, by the name of the field: run
without it, it would be something else than its author believes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

from sandpool.api.resource import Object
from sandpool.node.pods.spec import ALWAYS

REASON: Final = "UnsupportedField"

_VOLUMES: Final = frozenset(
    {"name", "emptyDir", "configMap", "secret", "projected", "downwardAPI", "persistentVolumeClaim"}
)
_PROJECTED: Final = frozenset({"configMap", "secret", "downwardAPI", "serviceAccountToken"})
_MEDIA: Final = (None, "", "Memory")
_OWN_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


class Refusal(NamedTuple):
    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


def refusals(pod: Object, *, host_paths: bool, resources: Collection[str], simulated: bool = False) -> list[Refusal]:
    """Everything that is refused, in the order of the fields. ``host_paths`` allows hostPath volumes, ``resources`` are
    those the node has. Nothing runs in the containers of a ``simulated`` pod."""
    spec = pod["spec"]
    return [
        *_pod_fields(spec),
        *_pod_security(spec.get("securityContext") or {}),
        *_volumes(spec, host_paths),
        *(_never_ending(spec) if simulated else ()),
        *(
            refusal
            for kind in ("initContainers", "containers", "ephemeralContainers")
            for index, container in enumerate(spec.get(kind) or ())
            for refusal in _container(container, f"spec.{kind}[{index}]", kind, resources)
        ),
    ]


def refused_later(before: Object, after: Object) -> list[Refusal]:
    """What was asked of a pod that runs and cannot be done any more. It runs on as it is."""
    found = []
    debugging = after["spec"].get("ephemeralContainers") or []
    if len(debugging) > len(before["spec"].get("ephemeralContainers") or []):
        found.append(Refusal(f"spec.ephemeralContainers[{len(debugging) - 1}]", _NOT_ADDED))
    for kind in ("initContainers", "containers"):
        pairs = zip(before["spec"].get(kind) or (), after["spec"].get(kind) or (), strict=False)
        for index, (old, new) in enumerate(pairs):
            if (old.get("resources") or {}) != (new.get("resources") or {}):
                found.append(Refusal(f"spec.{kind}[{index}].resources", "a container that runs keeps what it has"))
    return found


def message(found: list[Refusal]) -> str:
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


def _pod_fields(spec: Object) -> Iterator[Refusal]:
    for field, unsupported, why in _POD_FIELDS:
        if unsupported(spec.get(field)):
            yield Refusal(f"spec.{field}", why)
    if (spec.get("os") or {}).get("name") not in (None, "linux"):
        yield Refusal("spec.os.name", "the node runs Linux")


def _pod_security(security: Object) -> Iterator[Refusal]:
    at = "spec.securityContext"
    if security.get("sysctls"):
        yield Refusal(f"{at}.sysctls", "kernel parameters cannot be set")
    if security.get("supplementalGroups"):
        yield Refusal(f"{at}.supplementalGroups", "processes of a sandbox have one group")
    yield from _profiles(security, at)


def _profiles(security: Object, at: str) -> Iterator[Refusal]:
    if (security.get("seccompProfile") or {}).get("type") not in (None, "RuntimeDefault"):
        yield Refusal(f"{at}.seccompProfile.type", "only RuntimeDefault is offered, and it always holds")
    if (security.get("appArmorProfile") or {}).get("type") not in (None, "RuntimeDefault"):
        yield Refusal(f"{at}.appArmorProfile.type", "AppArmor profiles cannot be chosen")
    for field in ("seLinuxOptions", "windowsOptions"):
        if security.get(field):
            yield Refusal(f"{at}.{field}", "not available")


def _volumes(spec: Object, host_paths: bool) -> Iterator[Refusal]:
    allowed = _VOLUMES | {"hostPath"} if host_paths else _VOLUMES
    for index, volume in enumerate(spec.get("volumes") or ()):
        for kind in volume.keys() - allowed:
            why = "not allowed on this node" if kind == "hostPath" else _NO_VOLUMES
            yield Refusal(f"spec.volumes[{index}].{kind}", why)
        yield from _volume(volume, f"spec.volumes[{index}]")


def _volume(volume: Object, at: str) -> Iterator[Refusal]:
    """What a volume of a kind that is available cannot be."""
    if (volume.get("emptyDir") or {}).get("medium") not in _MEDIA:
        yield Refusal(f"{at}.emptyDir.medium", "there is the node's disk, and Memory")
    if str((volume.get("hostPath") or {}).get("type") or "").endswith("OrCreate"):
        yield Refusal(f"{at}.hostPath.type", "nothing is made on the host")
    for index, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
        for kind in source.keys() - _PROJECTED:
            yield Refusal(f"{at}.projected.sources[{index}].{kind}", _NO_VOLUMES)


def _never_ending(spec: Object) -> Iterator[Refusal]:
    for index, container in enumerate(spec.get("initContainers") or ()):
        if container.get("restartPolicy") != ALWAYS:
            yield Refusal(f"spec.initContainers[{index}]", "nothing runs in a simulated pod, so it would never end")


def _container(container: Object, at: str, kind: str, resources: Collection[str]) -> Iterator[Refusal]:
    if kind == "ephemeralContainers":
        yield Refusal(at, _NOT_ADDED)
        return
    policy = container.get("restartPolicy")
    if policy and (kind != "initContainers" or policy != ALWAYS):
        yield Refusal(f"{at}.restartPolicy", "only init containers have one, and only Always")
    if container.get("restartPolicyRules"):
        yield Refusal(f"{at}.restartPolicyRules", "not available")
    if container.get("volumeDevices"):
        yield Refusal(f"{at}.volumeDevices", "block devices are not available")
    for index, variable in enumerate(container.get("env") or ()):
        if (variable.get("valueFrom") or {}).get("fileKeyRef"):
            yield Refusal(f"{at}.env[{index}].valueFrom.fileKeyRef", "variables are known before files are")
    for index, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            yield Refusal(f"{at}.ports[{index}].hostPort", "ports of the host are not given to pods")
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("mountPropagation") not in (None, "None"):
            yield Refusal(f"{at}.volumeMounts[{index}].mountPropagation", "mounts are never shared with the host")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if (container.get(probe) or {}).get("grpc"):
            yield Refusal(f"{at}.{probe}.grpc", "use exec, httpGet or tcpSocket")
    yield from _container_security(container.get("securityContext") or {}, f"{at}.securityContext")
    wanted = container.get("resources") or {}
    if wanted.get("claims"):
        yield Refusal(f"{at}.resources.claims", "devices are not available")
    for name in sorted((wanted.get("limits") or {}).keys() | (wanted.get("requests") or {}).keys()):
        if name not in _OWN_RESOURCES and name not in resources:
            yield Refusal(f"{at}.resources", f"the node has no {name}")


def _container_security(security: Object, at: str) -> Iterator[Refusal]:
    if security.get("privileged"):
        yield Refusal(f"{at}.privileged", _SHARES_HOST)
    if (security.get("capabilities") or {}).get("add"):
        yield Refusal(f"{at}.capabilities.add", "processes of a sandbox have no capabilities")
    if security.get("procMount") not in (None, "Default"):
        yield Refusal(f"{at}.procMount", "only Default is offered")
    yield from _profiles(security, at)
