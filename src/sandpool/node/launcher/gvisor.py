"""Containers with a kernel of their own: what gVisor's runsc is given.

The program of such a container makes its system calls to gVisor's kernel, which is a process without privileges that
makes few of its own to the host's. Everything else is as for other OCI runtimes (``bundle``): a root in which
everything is mounted, cgroups that runsc is in already and does not touch, a user namespace that maps what the kernel
is allowed to be.

**Files.** gVisor could keep what is written to itself. It is told not to: then what is mounted bounds what can be
written, and other containers of the pod and the node see it.

**Network.** gVisor's own network stack would take the pod's addresses away for one of its containers, and hide the
sockets from the node, which connects to them from within the pod's namespace. So sockets are those of the host's
kernel, in that namespace and under its rules.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Final

from sandpool.node.launcher.bundle import BUNDLE, NAME, STATE, oci_config
from sandpool.node.launcher.root_directory import restrict_mount
from sandpool.node.launcher.rootfs import SANDBOX, Rootfs
from sandpool.node.runtimes.runtime import ContainerSpec, PodSandbox

#: What runsc calls what it knows of the container.
STATE_FILE: Final = f"{STATE}/{NAME}_sandbox:{NAME}.state"
_LOG: Final = "/log"
_OPTIONS: Final = (
    f"--root={STATE}",
    f"--log={_LOG}",
    "--log-format=json",
    "--ignore-cgroups",
    "--overlay2=none",
    "--file-access=shared",
    "--oci-seccomp",
)
# What runsc exits with if it has failed itself, having said why on standard error and in its log.
_FAILED: Final = 128
# The watcher comes first: commands are in the same cgroup and look like it.
_SCRIPT: Final = """
echo "{{ \\"watcher\\": $$ }}" >&3
{command} 3>&-
code=$?
if [ $code -eq {failed} ] && grep -q '"level":"error"' {log}; then exit 1; fi
echo "{{ \\"exit-code\\": $code }}" >&3
exit $code
"""


def gvisor_script(program: str, platform: str, pod: PodSandbox) -> str:
    network = "none" if pod.netns is None else "host"
    options = " ".join((*_OPTIONS, f"--platform={platform}", f"--network={network}"))
    command = f"{program} {options} run --bundle={BUNDLE} {NAME}"
    return _SCRIPT.format(command=command, failed=_FAILED, log=_LOG)


def gvisor_config(pod: PodSandbox, spec: ContainerSpec, stage: Rootfs) -> dict[str, Any]:
    config = oci_config(pod, spec, stage)
    config["process"]["terminal"] = spec.tty
    if (most := spec.limits.pids) is not None:
        # Where a cgroup refuses a process to another program, gVisor's kernel breaks down.
        config["process"]["rlimits"].append({"type": "RLIMIT_NPROC", "soft": most, "hard": most})
    if spec.read_only_root:
        # To gVisor it is one with what is mounted in it, which may be written to.
        restrict_mount(SANDBOX, read_only=True)
        config["root"]["readonly"] = False
    config["mounts"].append(_temporary(spec))
    config["linux"]["seccomp"] = _refusals(config["linux"]["seccomp"])
    return config


def _refusals(profile: dict[str, Any]) -> dict[str, Any]:
    """What is refused by name. gVisor knows no answer but EPERM, which is the wrong one for calls that a program tries
    before it falls back to others (clone3 for one); there, its kernel may say itself what it has."""
    rules = [rule for rule in profile["syscalls"] if rule.get("errnoRet") == errno.EPERM]
    return {**profile, "defaultAction": "SCMP_ACT_ALLOW", "defaultErrnoRet": None, "syscalls": rules}


def _temporary(spec: ContainerSpec) -> dict[str, Any]:
    """gVisor would otherwise put a directory of its own there, in memory and without a limit."""
    path = f"{SANDBOX}/tmp"
    if stat.S_ISDIR(os.lstat(path).st_mode if os.path.lexists(path) else 0):
        return {"destination": "/tmp", "type": "bind", "source": path, "options": ["rbind", "rw"]}
    options = ["nosuid", "nodev", "mode=1777", f"size={spec.scratch.size}"]
    return {"destination": "/tmp", "type": "tmpfs", "source": "tmp", "options": options}


def runsc(program: str, *arguments: str) -> list[str]:
    """A call about a container that runs."""
    return [program, f"--root={STATE}", "--log=/dev/null", *arguments]
