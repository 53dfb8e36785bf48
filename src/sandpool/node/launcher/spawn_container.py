"""Turns a forked child of the launcher into a container: the steps before bwrap is executed, and its arguments.
(For OCI runtimes see also ``bundle``, ``runc`` and ``gvisor``.)

bwrap does what must not be written by hand: it makes the namespaces, maps the user, enters the root file system, drops
every capability and loads the seccomp filter. It is executed as the sandbox's own user, never as root, so that nothing
in the sandbox can reach what belongs to root. (``/proc/sys`` is an example: in a sandbox started by root it is writable
even without capabilities.)
"""

from __future__ import annotations

import fcntl
import os
import resource
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from sandpool.node.cgroups.process_identity import MEMBERS_FILE, append_member
from sandpool.node.launcher import syscalls
from sandpool.node.launcher.bundle import crun_script, oci_config, write_bundle
from sandpool.node.launcher.gvisor import gvisor_config, gvisor_script
from sandpool.node.launcher.messages import memfd
from sandpool.node.launcher.rootfs import PROGRAMS, SANDBOX, Rootfs
from sandpool.node.launcher.runc import run_and_watch
from sandpool.node.launcher.unprivileged import is_unprivileged, own_namespaces
from sandpool.node.runtimes.runtime import Bind, ContainerSpec, DataFile, PodSandbox, RuntimeFailure

# The size of /dev/shm, unless a volume is mounted there.
_SHARED_MEMORY: Final = 64 << 20
# Descriptors that bwrap inherits. Standard input, output and error are the container's.
_STATUS, _ARGUMENTS, _FILTER = 3, 4, 5
BWRAP: Final = "bwrap"
CRUN: Final = "crun"
RUNC: Final = "runc"
GVISOR: Final = "gvisor"
# If the machine runs out of memory, the kernel kills sandboxes first.
_OOM_SCORE_ADJ: Final = "500"
_MAX_DESCRIPTOR: Final = (1 << 31) - 1


class ContainerRequest(NamedTuple):
    pod: PodSandbox
    spec: ContainerSpec
    join_files: list[str]  # of its cgroups
    programs: Path  # the directory of the runtime binary and its libraries
    program: str  # the path of the binary in that directory
    kind: str  # BWRAP, CRUN, RUNC or GVISOR
    platform: str  # how gVisor intercepts system calls
    cgroup: str  # its directory in the unified hierarchy, if the runtime needs to see it
    status: str  # the file for the exit code and PIDs
    stdio: list[int]  # three descriptors, and the mount of the disk for its writes if it has one
    filter: bytes  # the seccomp program


def become_container(request: ContainerRequest, report: int) -> None:
    """Set up the container and execute the runtime; does not return. Raises if a step before that fails. ``report`` is
    closed by the execution."""
    pod, spec = request.pod, request.spec
    if pod.host_uid == 0 or pod.host_gid == 0:
        raise PermissionError("a sandbox never runs as root of the host")
    check_words(spec)
    os.umask(0o022)
    os.setsid()
    enter_cgroups(request.join_files)
    if is_unprivileged():
        own_namespaces(pod.netns)
    elif pod.netns is not None:
        enter_network(pod.netns)
    status = os.open(request.status, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stdio, disk = request.stdio[:3], request.stdio[3] if len(request.stdio) > 3 else None
    rootfs = Rootfs(pod, spec, request.programs, Path(request.cgroup) if request.cgroup else None, disk)
    rootfs.build()
    rootfs.check()
    if spec.tty:
        take_terminal(stdio[0])
    program = f"{PROGRAMS}/{request.program}"
    if request.kind == GVISOR:
        limit_resources()  # gVisor's kernel opens the files of all processes inside, and limits those itself
        write_bundle(gvisor_config(pod, spec, rootfs))
        _become_script(gvisor_script(program, request.platform, pod), [*stdio, status], report)
    limit_resources(spec.nofile)
    if request.kind in (CRUN, RUNC):
        write_bundle(oci_config(pod, spec, rootfs))
        if request.kind == RUNC:
            arrange([*stdio, status], report)
            os.setgroups([])
            run_and_watch(program, _STATUS, report)
        _become_script(crun_script(program), [*stdio, status], report)
    arguments = memfd(b"".join(os.fsencode(argument) + b"\0" for argument in bwrap_arguments(pod, spec, rootfs)))
    arrange([*stdio, status, arguments, memfd(request.filter)], report)
    if not is_unprivileged():  # without root, groups cannot be dropped
        os.setgroups([])
    os.setresgid(pod.host_gid, pod.host_gid, pod.host_gid)
    os.setresuid(pod.host_uid, pod.host_uid, pod.host_uid)
    os.execve(program, ["bwrap", "--args", str(_ARGUMENTS), "--", *spec.argv], {})


def _become_script(script: str, descriptors: Sequence[int], report: int) -> None:
    arrange(descriptors, report)
    os.setgroups([])
    os.execve("/bin/sh", ["sh", "-c", script], {})


def bwrap_arguments(pod: PodSandbox, spec: ContainerSpec, rootfs: Rootfs) -> list[str]:
    """The arguments of bwrap. They are passed in a file: the sandbox can read the command line of its first process."""
    arguments = ["--unshare-user", "--unshare-pid", "--unshare-uts", "--unshare-ipc", "--unshare-cgroup"]
    if pod.netns is None:
        arguments.append("--unshare-net")
    arguments += ["--disable-userns", "--uid", str(spec.uid), "--gid", str(spec.gid), "--hostname", pod.hostname]
    arguments += ["--cap-drop", "ALL", "--seccomp", str(_FILTER), "--json-status-fd", str(_STATUS)]
    if not spec.tty:
        arguments.append("--new-session")
    arguments += ["--bind", SANDBOX, "/", "--proc", "/proc", "--dev", "/dev"]
    if not any(mount.target.rstrip("/") == "/dev/shm" for _, mount in rootfs.in_dev):
        arguments += ["--perms", "1777", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]
    for staged, mount in rootfs.in_dev:
        is_read_only = isinstance(mount, DataFile) or (isinstance(mount, Bind) and mount.read_only)
        arguments += ["--ro-bind" if is_read_only else "--bind", staged, mount.target]
    # /dev itself is a tmpfs without a size limit.
    arguments += ["--remount-ro", "/dev"]
    if spec.read_only_root:
        arguments += ["--remount-ro", "/"]
    arguments += ["--chdir", spec.cwd, "--clearenv"]
    for name, value in spec.env.items():
        arguments += ["--setenv", name, value]
    return arguments


def check_words(spec: ContainerSpec) -> None:
    """Refuse zero bytes: in the file from which bwrap reads its arguments they would start a new argument, which could
    be an option."""
    words = [*spec.argv, *spec.env, *spec.env.values(), spec.cwd, *(mount.target for mount in spec.mounts)]
    if any("\0" in word for word in words):
        raise RuntimeFailure("neither arguments nor variables nor paths may contain a zero byte")


def enter_cgroups(join_files: Sequence[str]) -> None:
    for entrance in join_files:
        if os.path.basename(entrance) == MEMBERS_FILE:
            append_member(entrance, os.getpid())
            continue
        descriptor = os.open(entrance, os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, b"0")
        os.close(descriptor)


def enter_network(netns: Path) -> None:
    descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(descriptor, syscalls.CLONE_NEWNET)
    os.close(descriptor)


def limit_resources(nofile: int | None = None) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE_ADJ)
    if nofile is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        bound = nofile if most == resource.RLIM_INFINITY else min(nofile, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def arrange(descriptors: Sequence[int], report: int) -> None:
    """Make these the descriptors 0, 1, 2 and so on, and close all others except ``report``, which is close-on-exec."""
    # Duplicated to higher numbers first, so that none is overwritten before it is copied.
    away = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, len(descriptors)) for descriptor in descriptors]
    for number, descriptor in enumerate(away):
        os.dup2(descriptor, number)
    os.closerange(len(away), report)
    os.closerange(report + 1, _MAX_DESCRIPTOR)


def take_terminal(descriptor: int) -> None:
    """Make the terminal the controlling one of this session."""
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
