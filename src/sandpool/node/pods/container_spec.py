"""Builds the runtime's container spec from the pod, the image and what was prepared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import INJECT_RUNTIME
from sandpool.api.quantity import parse
from sandpool.api.resource import Object, SharedObject
from sandpool.node.cgroups.limits import Limits
from sandpool.node.images.injected_runtime import MOUNT, server_command
from sandpool.node.pods.environment import ConfigError
from sandpool.node.pods.expansion import expand
from sandpool.node.pods.identity import identity
from sandpool.node.pods.interfaces import Image
from sandpool.node.pods.memory_files import root_size
from sandpool.node.pods.spec import Container
from sandpool.node.runtimes.runtime import DEFAULT_PIDS, Bind, ContainerSpec, DataFile, HostToolchain, Mount, Scratch

_UNIT: Final = 10**9
# Where files of a sandbox go whose image has no working directory.
_WORKSPACE: Final = "/workspace"
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build_container_spec(
    pod: SharedObject,
    container: Container,
    image: Image,
    env: Mapping[str, str],
    mounts: tuple[Mount, ...],
    *,
    hostname: str,
    pids: int = DEFAULT_PIDS,
    scratch: Scratch | None = None,
) -> ContainerSpec:
    """Without ``scratch``, the container's writes to its root are kept in memory. Raises ``ConfigError`` if the
    container cannot be run as specified."""
    spec = container.spec
    pod_security, security = pod["spec"].get("securityContext") or {}, spec.get("securityContext") or {}
    user = identity(pod_security, security, image.user)
    cwd = spec.get("workingDir") or image.working_dir or "/"
    variables = _with_defaults(hostname, image, env, spec, user.uid)
    if image.runtime is not None and wants_runtime(pod, spec):
        words = command_line(spec, image, env, required=False)
        argv = server_command(words, ends_with_command=bool(spec.get("command")))
        mounts = (Bind(image.runtime, MOUNT, read_only=True), *mounts)
        variables = {"SANDBOX_BASE_DIR": _WORKSPACE if cwd == "/" else cwd, **variables}
    else:
        argv = command_line(spec, image, env)
    return ContainerSpec(
        name=container.name,
        argv=argv,
        env=variables,
        cwd=cwd,
        uid=user.uid,
        gid=user.gid,
        root=image.root,
        scratch=Scratch(root_size(pod, spec)) if scratch is None else scratch,
        read_only_root=bool(security.get("readOnlyRootFilesystem")),
        mounts=(*_image_files(image, mounts), *mounts),
        limits=container_limits(spec, pids),
        tty=bool(spec.get("tty")),
        stdin=bool(spec.get("stdin")),
        stdin_once=bool(spec.get("stdin") and spec.get("stdinOnce") and not spec.get("tty")),
    )


def wants_runtime(pod: SharedObject, spec: Object) -> bool:
    """Whether a container gets the server of the runtime API if its image has none: the first one of a sandbox."""
    metadata = pod["metadata"]
    if (metadata.get("annotations") or {}).get(INJECT_RUNTIME) == "false":
        return False
    owned = any(owner.get("kind") == SANDBOX.kind for owner in metadata.get("ownerReferences") or ())
    return owned and bool(spec.get("name") == pod["spec"]["containers"][0]["name"])


def command_line(spec: Object, image: Image, env: Mapping[str, str], *, required: bool = True) -> tuple[str, ...]:
    """Return argv. ``command`` replaces the image's entrypoint and its default arguments; ``args`` replaces only the
    latter."""
    command, args = spec.get("command") or (), spec.get("args") or ()
    own = tuple(expand(word, env) for word in (*command, *args))
    words = own if command else (*image.entrypoint, *(own or image.command))
    if not words and required:
        raise ConfigError("no command specified: neither the container nor its image has one")
    return words


def _with_defaults(hostname: str, image: Image, env: Mapping[str, str], spec: Object, uid: int) -> dict[str, str]:
    """Add variables that every program expects, unless the image or the pod sets them."""
    defaults = {"PATH": DEFAULT_PATH, "HOSTNAME": hostname}
    if isinstance(image.root, HostToolchain):
        defaults["HOME"] = "/root" if uid == 0 else "/home/sandbox"  # as its /etc/passwd has it
    if spec.get("tty"):
        defaults["TERM"] = "xterm"
    return {**defaults, **image.env, **env}


def _image_files(image: Image, mounts: tuple[Mount, ...]) -> list[Mount]:
    own = {mount.target for mount in mounts}
    return [DataFile(path, content, optional=True) for path, content in image.files.items() if path not in own]


def container_limits(spec: Object, pids: int) -> Limits:
    resources = spec.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return Limits(
        cpu=_cores(limits.get("cpu")),
        cpu_request=_cores(requests.get("cpu")),
        memory=_bytes(limits.get("memory")),
        pids=pids,
    )


def pod_limits(pod: SharedObject, pids: int) -> Limits:
    """Return the limits of all containers together. As in kubelet, a limit is set only if every container has one. Of
    init containers, which run one after the other, the largest counts."""
    spec = pod["spec"]
    always = [*spec["containers"], *(each for each in spec.get("initContainers") or () if _stays(each))]
    briefly = [each for each in spec.get("initContainers") or () if not _stays(each)]

    def total(kind: str, name: str) -> int | None:
        amounts = [_amount(each, kind, name) for each in always]
        peaks = [_amount(each, kind, name) for each in briefly]
        if None in amounts or None in peaks:
            return None
        return max([sum(filter(None, amounts)), *filter(None, peaks)])

    cpu, memory, request = total("limits", "cpu"), total("limits", "memory"), total("requests", "cpu")
    return Limits(
        cpu=None if cpu is None else cpu / _UNIT,
        cpu_request=None if request is None else request / _UNIT,
        memory=None if memory is None else memory // _UNIT,
        pids=pids * len(always),
    )


def _stays(container: Object) -> bool:
    """Whether an init container is a sidecar."""
    return container.get("restartPolicy") == "Always"


def _amount(container: Object, kind: str, name: str) -> int | None:
    found = ((container.get("resources") or {}).get(kind) or {}).get(name)
    return None if found is None else parse(found).billionths


def _cores(amount: str | None) -> float | None:
    return None if amount is None else parse(amount).billionths / _UNIT


def _bytes(amount: str | None) -> int | None:
    return None if amount is None else parse(amount).billionths // _UNIT
