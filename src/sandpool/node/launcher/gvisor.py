"""The configuration of gVisor's runsc.

A program in such a container makes its system calls to gVisor's kernel, an unprivileged process that makes few system
calls of its own. Everything else is as for other OCI runtimes (``bundle``): a root file system in which everything is
mounted, cgroups that runsc has already joined and does not touch, and a user namespace for gVisor's kernel.

**Files.** gVisor could keep written files to itself. That is switched off: the sizes of the mounts then limit writes,
and the node and other containers of the pod see the files.

**Network.** gVisor's own network stack would take the pod's addresses for one of its containers, and hide its sockets
from the node, which connects from inside the pod's namespace. Sockets are therefore those of the host's kernel, in that
namespace and under its rules.
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

#: The state file of runsc.
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
# The exit code of runsc for an error of its own, which is on standard error and in its log.
_FAILED: Final = 128
# The shell records itself as the watcher first: commands are in the same cgroup and look like it.
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


def gvisor_config(pod: PodSandbox, spec: ContainerSpec, rootfs: Rootfs) -> dict[str, Any]:
    config = oci_config(pod, spec, rootfs)
    config["process"]["terminal"] = spec.tty
    if (most := spec.limits.pids) is not None:
        # gVisor's kernel crashes where the cgroup refuses it a process, so it enforces the limit itself.
        config["process"]["rlimits"].append({"type": "RLIMIT_NPROC", "soft": most, "hard": most})
    if spec.read_only_root:
        # gVisor would make the volumes mounted in it read-only, too.
        restrict_mount(SANDBOX, read_only=True)
        config["root"]["readonly"] = False
    config["mounts"].append(_temporary(spec))
    config["linux"]["seccomp"] = _seccomp_profile(config["linux"]["seccomp"])
    return config


def _seccomp_profile(profile: dict[str, Any]) -> dict[str, Any]:
    """The profile with only the rules that refuse calls by name.

    gVisor can only return EPERM, which is wrong for calls that a program tries before it falls back to others (such as
    clone3); gVisor's kernel answers those itself.
    """
    rules = [rule for rule in profile["syscalls"] if rule.get("errnoRet") == errno.EPERM]
    return {**profile, "defaultAction": "SCMP_ACT_ALLOW", "defaultErrnoRet": None, "syscalls": rules}


def _temporary(spec: ContainerSpec) -> dict[str, Any]:
    """A mount for /tmp. gVisor would otherwise mount a tmpfs without a size limit there."""
    path = f"{SANDBOX}/tmp"
    if stat.S_ISDIR(os.lstat(path).st_mode if os.path.lexists(path) else 0):
        return {"destination": "/tmp", "type": "bind", "source": path, "options": ["rbind", "rw"]}
    options = ["nosuid", "nodev", "mode=1777", f"size={spec.scratch.size}"]
    return {"destination": "/tmp", "type": "tmpfs", "source": "tmp", "options": options}


def runsc(program: str, *arguments: str) -> list[str]:
    """The arguments of a call of runsc about a running container."""
    return [program, f"--root={STATE}", "--log=/dev/null", *arguments]
