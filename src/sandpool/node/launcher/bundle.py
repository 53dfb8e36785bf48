"""OCI bundles for crun, runc and gVisor.

The runtime finds a root file system in which everything is mounted, and this process is already in the container's
cgroups. Namespaces, ID mappings, capabilities and the seccomp filter are left to the runtime. crun has an option to
ignore cgroups, which also avoids its refusal of hybrid hierarchies. runc has none, and gVisor is another kernel: see
``runc`` and ``gvisor`` for what they need in addition.

An OCI runtime has to be root when it starts. Unlike bwrap's, its user namespace must therefore map a root: the
container's user if that is 0, and otherwise a host user of the pod's own to which nothing else is mapped.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from sandpool.node.launcher.rootfs import CGROUPS, SANDBOX, Rootfs
from sandpool.node.runtimes.runtime import Bind, ContainerSpec, DataFile, PodSandbox
from sandpool.node.runtimes.seccomp import profile

BUNDLE: Final = "/bundle"
#: The state directory of the runtime.
STATE: Final = "/state"
# The name of the container. Each container has a state directory of its own, so the name need not be unique.
NAME: Final = "sandbox"
#: The first host UID of roots of containers that run as another user: above all ranges that are allocated.
ROOTS: Final = 1 << 30
_SHARED_MEMORY: Final = 64 << 20
_MASKED: Final = ("acpi", "asound", "interrupts", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list")
# Read at import: when it is needed, the host's files are out of reach.
_PROFILE: Final = profile()
_READ_ONLY: Final = ("bus", "fs", "irq", "sys", "sysrq-trigger")
# The runtime waits for the container and exits with its code; its own errors are in its log. The status file has the
# format of bwrap's.
_SCRIPT: Final = """
{program} --root {state} --log /log --cgroup-manager=disabled run --bundle {bundle} {name}
code=$?
if [ $code -ne 0 ] && [ -s /log ]; then cat /log >&2; exit 1; fi
echo "{{ \\"exit-code\\": $code }}" >&3
exit $code
"""


def crun_script(program: str) -> str:
    return _SCRIPT.format(program=program, state=STATE, bundle=BUNDLE, name=NAME)


def write_bundle(config: dict[str, Any]) -> None:
    # crun looks for cgroups before it reads the option to ignore them.
    for directory in (BUNDLE, STATE, CGROUPS):
        os.makedirs(directory, 0o700, exist_ok=True)
    with open(f"{BUNDLE}/config.json", "w") as file:
        json.dump(config, file)


def oci_config(pod: PodSandbox, spec: ContainerSpec, rootfs: Rootfs) -> dict[str, Any]:
    namespaces = ["pid", "ipc", "uts", "mount", "cgroup", "user", *(["network"] if pod.netns is None else [])]
    return {
        "ociVersion": "1.0.2",
        "hostname": pod.hostname,
        "root": {"path": SANDBOX, "readonly": spec.read_only_root},
        "process": {
            "terminal": False,
            "user": {"uid": spec.uid, "gid": spec.gid},
            "args": list(spec.argv),
            "env": [f"{name}={value}" for name, value in spec.env.items()],
            "cwd": spec.cwd,
            "capabilities": {},
            "noNewPrivileges": True,
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": spec.nofile, "hard": spec.nofile},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            ],
        },
        "mounts": _mounts(rootfs),
        "linux": {
            "namespaces": [{"type": type} for type in namespaces],
            "uidMappings": _mappings(spec.uid, pod.host_uid),
            "gidMappings": _mappings(spec.gid, pod.host_gid),
            "seccomp": _PROFILE,
            "maskedPaths": [f"/proc/{name}" for name in _MASKED],
            "readonlyPaths": [f"/proc/{name}" for name in _READ_ONLY],
        },
    }


def _mappings(inside: int, outside: int) -> list[dict[str, int]]:
    mappings = [{"containerID": inside, "hostID": outside, "size": 1}]
    if inside != 0:
        mappings.insert(0, {"containerID": 0, "hostID": ROOTS + outside, "size": 1})
    return mappings


def _mounts(rootfs: Rootfs) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "noexec", "mode=755", "size=64k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        },
    ]
    if not any(mount.target.rstrip("/") == "/dev/shm" for _, mount in rootfs.in_dev):
        options = ["nosuid", "noexec", "nodev", "mode=1777", f"size={_SHARED_MEMORY}"]
        mounts.append({"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": options})
    for staged, mount in rootfs.in_dev:
        is_read_only = isinstance(mount, DataFile) or (isinstance(mount, Bind) and mount.read_only)
        options = ["bind", "nosuid", "nodev", "ro" if is_read_only else "rw"]
        mounts.append({"destination": mount.target, "type": "bind", "source": staged, "options": options})
    return mounts
