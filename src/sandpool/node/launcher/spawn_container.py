"""From a forked child of the launcher to a container: what happens before bwrap is executed, and with which arguments.
(Or before an OCI runtime is, for which see ``bundle``, ``runc`` and ``gvisor``.)

bwrap does what must not be written by hand: it makes the namespaces, maps the user, enters the root that was put on the
stage, drops every capability and loads the seccomp filter. It is executed as the sandbox's own user, never as root:
what belongs to root is then out of reach for whoever is in the sandbox, however it looks from there. (``/proc/sys`` for
one: in a sandbox that root has started it can be written, capabilities or not.)
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

# What may be kept in /dev/shm, unless something is mounted there.
_SHARED_MEMORY: Final = 64 << 20
# What bwrap finds open. Standard input, output and error are the container's.
_STATUS, _ARGUMENTS, _FILTER = 3, 4, 5
BWRAP: Final = "bwrap"
CRUN: Final = "crun"
RUNC: Final = "runc"
GVISOR: Final = "gvisor"
# When the machine itself runs out of memory, sandboxes go before everything else does.
_SACRIFICE: Final = "500"
_EVERY_DESCRIPTOR: Final = (1 << 31) - 1


class ContainerRequest(NamedTuple):
    pod: PodSandbox
    spec: ContainerSpec
    join_files: list[str]  # of its cgroups
    programs: Path  # a directory with the program that confines, and its libraries
    program: str  # where it is in that directory
    kind: str  # BWRAP, CRUN, RUNC or GVISOR
    platform: str  # how gVisor gets at system calls
    cgroup: str  # its directory in the unified hierarchy, if whoever confines insists on seeing it
    status: str  # the file it reports to
    stdio: list[int]  # three descriptors
    filter: bytes  # for system calls


def become_container(order: ContainerRequest, report: int) -> None:
    """Does not return. Raises if something fails before bwrap is executed; ``report`` is closed when it is."""
    pod, spec = order.pod, order.spec
    if pod.host_uid == 0 or pod.host_gid == 0:
        raise PermissionError("a sandbox is never root's")
    check_words(spec)
    os.umask(0o022)
    os.setsid()
    enter_cgroups(order.join_files)
    if is_unprivileged():
        own_namespaces(pod.netns)
    elif pod.netns is not None:
        enter_network(pod.netns)
    status = os.open(order.status, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    stage = Rootfs(pod, spec, order.programs, Path(order.cgroup) if order.cgroup else None)
    stage.build()
    stage.check()
    if spec.tty:
        take_terminal(order.stdio[0])
    program = f"{PROGRAMS}/{order.program}"
    if order.kind == GVISOR:
        limit_resources()  # its kernel opens files for everybody in it, and limits those itself
        write_bundle(gvisor_config(pod, spec, stage))
        _become_script(gvisor_script(program, order.platform, pod), [*order.stdio, status], report)
    limit_resources(spec.nofile)
    if order.kind in (CRUN, RUNC):
        write_bundle(oci_config(pod, spec, stage))
        if order.kind == RUNC:
            arrange([*order.stdio, status], report)
            os.setgroups([])
            run_and_watch(program, _STATUS, report)
        _become_script(crun_script(program), [*order.stdio, status], report)
    arguments = memfd(b"".join(os.fsencode(argument) + b"\0" for argument in bwrap_arguments(pod, spec, stage)))
    arrange([*order.stdio, status, arguments, memfd(order.filter)], report)
    if not is_unprivileged():  # who has the others' groups, and may not give them up
        os.setgroups([])
    os.setresgid(pod.host_gid, pod.host_gid, pod.host_gid)
    os.setresuid(pod.host_uid, pod.host_uid, pod.host_uid)
    os.execve(program, ["bwrap", "--args", str(_ARGUMENTS), "--", *spec.argv], {})


def _become_script(script: str, descriptors: Sequence[int], report: int) -> None:
    arrange(descriptors, report)
    os.setgroups([])
    os.execve("/bin/sh", ["sh", "-c", script], {})


def bwrap_arguments(pod: PodSandbox, spec: ContainerSpec, stage: Rootfs) -> list[str]:
    """Given in a file, not on the command line: that can be read in the sandbox, as the first process's."""
    arguments = ["--unshare-user", "--unshare-pid", "--unshare-uts", "--unshare-ipc", "--unshare-cgroup"]
    if pod.netns is None:
        arguments.append("--unshare-net")
    arguments += ["--disable-userns", "--uid", str(spec.uid), "--gid", str(spec.gid), "--hostname", pod.hostname]
    arguments += ["--cap-drop", "ALL", "--seccomp", str(_FILTER), "--json-status-fd", str(_STATUS)]
    if not spec.tty:
        arguments.append("--new-session")
    arguments += ["--bind", SANDBOX, "/", "--proc", "/proc", "--dev", "/dev"]
    if not any(mount.target.rstrip("/") == "/dev/shm" for _, mount in stage.in_dev):
        arguments += ["--perms", "1777", "--size", str(_SHARED_MEMORY), "--tmpfs", "/dev/shm"]
    for staged, mount in stage.in_dev:
        is_read_only = isinstance(mount, DataFile) or (isinstance(mount, Bind) and mount.read_only)
        arguments += ["--ro-bind" if is_read_only else "--bind", staged, mount.target]
    # The directory itself is a tmpfs without a limit.
    arguments += ["--remount-ro", "/dev"]
    if spec.read_only_root:
        arguments += ["--remount-ro", "/"]
    arguments += ["--chdir", spec.cwd, "--clearenv"]
    for name, value in spec.env.items():
        arguments += ["--setenv", name, value]
    return arguments


def check_words(spec: ContainerSpec) -> None:
    """bwrap reads its arguments from a file, where one with a zero byte in it would be two: the second is an option."""
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
        file.write(_SACRIFICE)
    if nofile is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        bound = nofile if most == resource.RLIM_INFINITY else min(nofile, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def arrange(descriptors: Sequence[int], report: int) -> None:
    """Have these as 0, 1, 2 and so on, and no others but ``report``, which ends when something is executed."""
    # Out of the way first, so that none is overwritten before it was copied.
    away = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, len(descriptors)) for descriptor in descriptors]
    for number, descriptor in enumerate(away):
        os.dup2(descriptor, number)
    os.closerange(len(away), report)
    os.closerange(report + 1, _EVERY_DESCRIPTOR)


def take_terminal(descriptor: int) -> None:
    """Make it the controlling terminal of this session."""
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
