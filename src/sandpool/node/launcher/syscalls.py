"""System calls that Python does not offer. All of them raise OSError, like those of ``os``."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Mapping
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000

RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_BENEATH: Final = 0x08
RESOLVE_IN_ROOT: Final = 0x10

_MNT_DETACH: Final = 0x2
_O_PATH: Final = os.O_PATH | os.O_CLOEXEC
_SIGKILL: Final = 9
_SIGCHLD: Final = 17
_CLONE_INTO_CGROUP: Final = 0x200000000
_SIGSTOP: Final = 19
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_OPEN_TREE_CLONE: Final = 0x1
_MOVE_MOUNT_F_EMPTY_PATH: Final = 0x4
_MOUNT_ATTR_IDMAP: Final = 0x00100000
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4
MOUNT_ATTR_NOATIME: Final = 0x10
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 0, 1, 6

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522

_NUMBERS: Final = {
    "x86_64": {"rt_sigaction": 13, "capset": 126, "pivot_root": 155},
    "aarch64": {"rt_sigaction": 134, "capset": 91, "pivot_root": 41},
}
# The same on all architectures.
_OPEN_TREE, _MOVE_MOUNT, _CLONE3, _OPENAT2, _MOUNT_SETATTR = 428, 429, 435, 437, 442
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _CloneArgs(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls"),
            *("set_tid", "set_tid_size", "cgroup"),
        )
    )


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def default_signals() -> None:
    """Set every signal to its default action, as a program expects. An executed program inherits ignored signals:
    Python ignores two, and does not give access to those that the C library reserves."""
    default = bytes(32)  # no handler, no flags, nothing blocked meanwhile
    for number in range(1, 65):
        if number not in (_SIGKILL, _SIGSTOP):
            _checked(_libc.syscall(_NUMBERS[platform.machine()]["rt_sigaction"], number, default, None, 8))


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags))


def setns(descriptor: int, flags: int) -> None:
    _checked(_libc.setns(descriptor, flags))


def mount(source: str, target: str, type: str, flags: int, options: str = "") -> None:
    _checked(
        _libc.mount(
            os.fsencode(source), os.fsencode(target), os.fsencode(type), ctypes.c_ulong(flags), os.fsencode(options)
        ),
        target,
    )


def unmount(target: str) -> None:
    """Detach a mount: it disappears at once, and is released when it is no longer used."""
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH), target)


def change_root(directory: str) -> None:
    """Make a mount the root of this process's mount namespace, and detach the old root."""
    os.chdir(directory)
    # Onto itself: the old root is then mounted over the new one and can be detached without a directory for it.
    _checked(_libc.syscall(_NUMBERS[platform.machine()]["pivot_root"], b".", b"."))
    unmount(".")
    os.chdir("/")


def open_within(root: int, path: str, flags: int = _O_PATH, mode: int = 0, *, resolve: int = RESOLVE_IN_ROOT) -> int:
    """Open ``path`` as if ``root`` were the root directory: no symbolic link leads out of it. With RESOLVE_BENEATH a
    link that would lead out is an error."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve | RESOLVE_NO_MAGICLINKS)
    while True:
        found: int = _libc.syscall(_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        # The kernel cannot resolve a path with .. safely while anything is renamed or mounted; try again.
        if found >= 0 or ctypes.get_errno() != errno.EAGAIN:
            return _checked(found, path)


def clone_mount(descriptor: int) -> int:
    """Return a detached copy of the mount at an open file or directory."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH
    tree: int = _checked(_libc.syscall(_OPEN_TREE, descriptor, b"", flags))
    return tree


def map_ids(tree: int, userns: int) -> None:
    """Make a mount ID-mapped: files appear to belong to the IDs that the user namespace maps their owners to."""
    attributes = _MountAttr(_MOUNT_ATTR_IDMAP, 0, 0, userns)
    _checked(
        _libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), ctypes.sizeof(attributes))
    )


def new_mount(source: str, type: str, options: Mapping[str, str | None], attributes: int) -> int:
    """Mount a file system nowhere and return the mount, for ``attach_mount``. Options without a value are flags."""
    context: int = _checked(_libc.syscall(_FSOPEN, os.fsencode(type), 1), source)  # 1: close on exec
    try:
        for name, value in {"source": source, **options}.items():
            command = _FSCONFIG_SET_FLAG if value is None else _FSCONFIG_SET_STRING
            text = None if value is None else os.fsencode(value)
            _checked(_libc.syscall(_FSCONFIG, context, command, os.fsencode(name), text, 0), source)
        _checked(_libc.syscall(_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0), source)
        mount: int = _checked(_libc.syscall(_FSMOUNT, context, 1, attributes), source)
        return mount
    finally:
        os.close(context)


def attach_mount(tree: int, target: str) -> None:
    _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH), target)


def fork_into(cgroup: int) -> int:
    """Fork a child that starts in a cgroup of the unified hierarchy, given as its open directory. Returns 0 in the
    child. Raises ``NotImplementedError`` where the kernel or a seccomp filter does not support this."""
    arguments = _CloneArgs(flags=_CLONE_INTO_CGROUP, exit_signal=_SIGCHLD, cgroup=cgroup)
    pid: int = _libc.syscall(_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if pid < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EINVAL, errno.E2BIG):
        raise NotImplementedError("clone3")
    return _checked(pid)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (child subreaper)."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def hide() -> None:
    """Make this process undumpable until it executes a program: other processes of its user cannot inspect it."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def kill_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. A change of user revokes it."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))


def drop_capabilities() -> None:
    """Drop all capabilities permanently. With an empty bounding set, uid 0 gets none by executing a program either."""
    drop_bounding_set()
    _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(_libc.syscall(_NUMBERS[platform.machine()]["capset"], header, nothing))


def drop_bounding_set() -> None:
    """Empty the bounding set of capabilities, as far as this process may."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # that was the last one


def no_new_privileges() -> None:
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def filter_system_calls(program: bytes) -> None:
    instructions = ctypes.create_string_buffer(program, len(program))
    loaded = _Program(len(program) // 8, ctypes.addressof(instructions))
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(loaded), 0, 0))


def _checked(result: int, about: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), about)
    return result
