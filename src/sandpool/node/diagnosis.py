"""Checks whether a machine can run sandboxes, for ``sandpool doctor``.

A check tries the thing itself where that is cheap and leaves nothing behind; otherwise it looks for the program. Each
result says what was found and, unless all is well, what to do."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import sandpool
from sandpool.node.cgroups.mounts import NoCgroups, discover
from sandpool.node.runtimes.bwrap import find_bwrap
from sandpool.node.runtimes.confined import ConfinedRuntime, RuntimeUnusable
from sandpool.node.runtimes.gvisor import GvisorRuntime
from sandpool.node.runtimes.oci import CrunRuntime, RuncRuntime

_GIB: Final = 1 << 30
# ID-mapped mounts, with which an image is shared by containers of several users.
_KERNEL: Final = (5, 12)
_NOBODY: Final = 65534
_FILES: Final = 4096
_NOT_SYNCHRONISED: Final = 5  # TIME_ERROR of adjtimex(2)
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_SWITCHES: Final = (
    "allow user namespaces: check user.max_user_namespaces, kernel.unprivileged_userns_clone and "
    "kernel.apparmor_restrict_unprivileged_userns with sysctl"
)


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # something optional is missing
    WARNING = "warning"  # sandboxes run, with less than they could have
    PROBLEM = "problem"  # sandboxes do not run


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``advice`` is empty if all is well."""

    name: str
    level: Level
    found: str
    advice: str = ""


def examine(data_dir: Path, with_root: str) -> Iterator[Finding]:
    """Yield the findings about this machine. ``data_dir`` is where the home keeps its data; it need not exist.
    ``with_root`` is the command that starts a home as root."""
    if platform.system() != "Linux":
        yield Finding("system", Level.PROBLEM, platform.system(), "run `sandpool up` on Linux; clients work here")
        return
    is_root = os.geteuid() == 0
    yield kernel(platform.release())
    yield user(is_root, with_root)
    yield namespaces()
    yield cgroups(is_root)
    yield seccomp()
    for runtime in (CrunRuntime, RuncRuntime, GvisorRuntime):
        yield optional_runtime(runtime, is_root)
    yield from programs(is_root, lambda name: shutil.which(name, path=_PATH))
    yield disk(data_dir)
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield clock(time.time(), Path(sandpool.__file__).stat().st_mtime, _adjtimex())


def kernel(release: str) -> Finding:
    numbers = re.match(r"(\d+)\.(\d+)", release)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if version >= _KERNEL:
        return Finding("kernel", Level.OK, f"Linux {release}")
    return Finding("kernel", Level.PROBLEM, f"Linux {release}", f"upgrade to Linux {_KERNEL[0]}.{_KERNEL[1]} or newer")


def user(is_root: bool, with_root: str) -> Finding:
    if is_root:
        return Finding("user", Level.OK, "root")
    return Finding(
        "user",
        Level.WARNING,
        "not root: sandboxes have no limits of CPU and memory, no network, and write to memory",
        f"use `{with_root}` for these; docs/local.md lists all differences",
    )


def namespaces() -> Finding:
    """Start a program confined by bwrap, as an unprivileged user: what every sandbox needs."""
    try:
        binary = find_bwrap()
    except RuntimeUnusable as error:
        return Finding("bwrap", Level.PROBLEM, "missing or too old", str(error))
    version = ".".join(map(str, binary.version))
    command = [
        *(str(binary.directory / binary.program), "--unshare-all", "--ro-bind", "/usr", "/usr"),
        *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
        *("--proc", "/proc", "--dev", "/dev", "/usr/bin/true"),
    ]
    try:
        who = _NOBODY if os.geteuid() == 0 and _is_reachable(Path(command[0])) else None
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, user=who, group=who, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("bwrap", Level.PROBLEM, f"bwrap {version} does not start: {error}", _SWITCHES)
    if done.returncode != 0:
        return Finding("bwrap", Level.PROBLEM, f"bwrap {version} fails: {done.stderr.strip()}", _SWITCHES)
    return Finding("bwrap", Level.OK, f"bwrap {version} confines programs with namespaces")


def cgroups(is_root: bool) -> Finding:
    try:
        found = discover()
    except (NoCgroups, OSError) as error:
        level = Level.PROBLEM if is_root else Level.NOTE
        return Finding("cgroups", level, str(error), "boot with systemd.unified_cgroup_hierarchy=1 for cgroup v2")
    layout = f"v2, with {', '.join(sorted(found.v1))} in v1" if found.v1 else "v2"
    if is_root and not os.access(found.unified, os.W_OK):
        return Finding("cgroups", Level.PROBLEM, f"{layout}, read-only", f"mount {found.unified} writable")
    return Finding("cgroups", Level.OK, layout)


def seccomp() -> Finding:
    if Path("/proc/sys/kernel/seccomp/actions_avail").exists():
        return Finding("seccomp", Level.OK, "system calls can be filtered")
    return Finding("seccomp", Level.PROBLEM, "missing", "use a kernel with CONFIG_SECCOMP_FILTER")


def optional_runtime(runtime: type[ConfinedRuntime], is_root: bool) -> Finding:
    """Check a runtime beside bwrap, which a template selects with a RuntimeClass."""
    # Only a node can make one; finding the program needs none of its state.
    unmade = runtime.__new__(runtime)
    name = unmade.name
    try:
        binary = unmade.find_binary()
    except RuntimeUnusable as error:
        how = "install runsc of gvisor.dev" if runtime is GvisorRuntime else f"apt-get install {name}"
        return Finding(name, Level.NOTE, str(error), f"only for pods with this runtimeClassName: {how}")
    found = f"{binary.directory / binary.program} {'.'.join(map(str, binary.version))}".rstrip()
    if not is_root:
        return Finding(name, Level.NOTE, f"{found} needs root", "only for pods with this runtimeClassName")
    return Finding(name, Level.OK, found)


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the system: its purpose, its Debian package, and how much is lost without it."""

    name: str
    purpose: str
    package: str
    level: Level
    root_only: bool = False


PROGRAMS: Final = (
    Program("nft", "the network of sandboxes and its policies", "nftables", Level.PROBLEM, root_only=True),
    Program("mkfs.ext4", "size limits of volumes and roots on disk", "e2fsprogs", Level.WARNING, root_only=True),
    Program("skopeo", "images from registries", "skopeo", Level.NOTE),
    Program("umoci", "unpacking images from registries", "umoci", Level.NOTE),
    Program("kubectl", "the API from a shell", "kubernetes-client", Level.NOTE),
)


def programs(is_root: bool, find: Callable[[str], str | None]) -> Iterator[Finding]:
    for each in PROGRAMS:
        path = find(each.name)
        if path is not None:
            yield Finding(each.name, Level.OK, path)
        elif each.root_only and not is_root:
            yield Finding(each.name, Level.NOTE, f"not installed; for {each.purpose}, which needs root")
        else:
            advice = f"apt-get install {each.package}"
            yield Finding(each.name, each.level, f"not installed; for {each.purpose}", advice)


def disk(data_dir: Path) -> Finding:
    place = data_dir
    while not place.exists():
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("disk", Level.PROBLEM, f"{place}: {error.strerror}", "choose another --data-dir")
    shown = f"{free / _GIB:.1f} GiB free in {place}"
    if free < _GIB:
        return Finding("disk", Level.PROBLEM, shown, "make room, or choose another --data-dir")
    if free < 10 * _GIB:
        return Finding("disk", Level.WARNING, shown, "the root of one sandbox may grow to 10 GiB: make room")
    return Finding("disk", Level.OK, shown)


def open_files(most: int) -> Finding:
    if most == resource.RLIM_INFINITY or most >= _FILES:
        return Finding("open files", Level.OK, "unlimited" if most == resource.RLIM_INFINITY else f"up to {most}")
    return Finding(
        "open files", Level.WARNING, f"up to {most}", f"raise the hard limit to {_FILES}: ulimit -Hn {_FILES}"
    )


def clock(now: float, installed: float, state: int) -> Finding:
    """Certificates and leases need the right time. ``installed`` is when this program was installed, ``state`` the
    result of adjtimex(2)."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 24 * 3600:
        return Finding("clock", Level.PROBLEM, f"{shown}, before the installation of this program", "set the clock")
    if state == _NOT_SYNCHRONISED:
        return Finding(
            "clock", Level.NOTE, f"{shown}, not synchronised", "run an NTP client, such as systemd-timesyncd"
        )
    return Finding("clock", Level.OK, f"{shown}, synchronised" if state >= 0 else shown)


def _adjtimex() -> int:
    """Return the state of the clock; -1 if it cannot be read."""
    buffer = ctypes.create_string_buffer(512)  # struct timex with modes 0: only read
    return int(ctypes.CDLL(None).adjtimex(buffer))


def _is_reachable(path: Path) -> bool:
    """Whether every user can execute the file."""
    return all(os.stat(each).st_mode & 0o001 for each in (path, *path.resolve().parents))
