"""What a launcher that is not root does to be allowed what it has to do: it becomes the owner of a user namespace.

In there it may mount and may make and enter other namespaces, and is still nobody but itself to the rest of the
machine. A pod's user namespace is held, with its network namespace, by a process that does nothing else; the node comes
in to connect to what listens there.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from sandpool.node.cgroups.process_identity import start_time
from sandpool.node.launcher import syscalls
from sandpool.node.runtimes.runtime import RuntimeFailure

_NS_GET_USERNS: Final = 0xB701
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP_RUNNING: Final = 0x1 | 0x40
_SWITCHES: Final = (
    "see the settings user.max_user_namespaces, syscalls.unprivileged_userns_clone and "
    "kernel.apparmor_restrict_unprivileged_userns"
)
_CONNECTING: Final = 5.0  # seconds


class HoldNamespacesRequest(NamedTuple):
    """Namespaces for a pod: of users, and a network with nothing in it but a loopback interface that is up. Who holds
    them writes down to ``record`` the pod's address, its own PID and when it began, so that it is found again whatever
    becomes of who asked."""

    record: str
    address: str
    stdio: list[int]
    filter: bytes  # not used


class DialRequest(NamedTuple):
    """A connection to something in a network namespace, which is passed through the first of ``stdio``, a socket."""

    netns: str
    host: str
    port: int
    stdio: list[int]
    filter: bytes  # not used


def is_unprivileged() -> bool:
    return os.geteuid() != 0


def own_namespaces(netns: Path | None) -> None:
    """Be allowed to mount: in the user namespace that this network is of, or in a new one."""
    if netns is None:
        _new_user_namespace(0)
    else:
        _enter(str(netns))


def hold_namespaces(order: HoldNamespacesRequest, report: int) -> None:
    """Does not return."""
    os.setsid()
    with open(order.record, "w") as file:
        json.dump([order.address, os.getpid(), start_time(os.getpid())], file)
    _new_user_namespace(syscalls.CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        fcntl.ioctl(anything, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))
    os.chdir("/")
    for number in range(3):
        os.dup2(order.stdio[0], number)
    os.execve("/bin/sleep", ["sleep", "infinity"], {})


def dial_in_namespace(order: DialRequest, report: int) -> None:
    """Does not return."""
    _enter(order.netns)
    with socket.create_connection((order.host, order.port), _CONNECTING) as connection:
        connection.setblocking(False)
        with socket.socket(fileno=order.stdio[0]) as waiting:
            socket.send_fds(waiting, [b"x"], [connection.fileno()])
    os._exit(0)


def _enter(netns: str) -> None:
    network = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    users = fcntl.ioctl(network, _NS_GET_USERNS)
    syscalls.setns(users, syscalls.CLONE_NEWUSER)
    syscalls.setns(network, syscalls.CLONE_NEWNET)
    os.close(users)
    os.close(network)


def _new_user_namespace(more: int) -> None:
    """In which we are who we are, and nobody else is anybody."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER | more)
    except OSError as error:
        raise RuntimeFailure(f"this user may make no user namespaces ({error.strerror}); {_SWITCHES}") from error
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{file}", "w") as opened:
            opened.write(text)
