"""User namespaces for a launcher without root.

As the owner of a user namespace, the launcher may mount, and make and enter other namespaces, while it stays an
ordinary user to the rest of the machine. A process that does nothing else holds the user namespace and the network
namespace of a pod; the launcher enters them to connect to the pod.
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
    "see the settings user.max_user_namespaces, kernel.unprivileged_userns_clone and "
    "kernel.apparmor_restrict_unprivileged_userns"
)
_CONNECTING: Final = 5.0  # seconds


class HoldNamespacesRequest(NamedTuple):
    """Make and hold a user namespace and a network namespace with a loopback interface for a pod. The holder writes the
    pod's address, its own PID and its start time to the file ``record``, so that the next agent finds it."""

    record: str
    address: str
    stdio: list[int]
    filter: bytes  # not used


class DialRequest(NamedTuple):
    """Connect to an address in a network namespace and pass the connection through ``stdio[0]``, a socket."""

    netns: str
    host: str
    port: int
    stdio: list[int]
    filter: bytes  # not used


def is_unprivileged() -> bool:
    return os.geteuid() != 0


def own_namespaces(netns: Path | None) -> None:
    """Enter the user namespace that owns this network namespace, or a new one, in order to mount."""
    if netns is None:
        _new_user_namespace(0)
    else:
        _enter(str(netns))


def hold_namespaces(request: HoldNamespacesRequest, report: int) -> None:
    """Does not return."""
    os.setsid()
    with open(request.record, "w") as file:
        json.dump([request.address, os.getpid(), start_time(os.getpid())], file)
    _new_user_namespace(syscalls.CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        fcntl.ioctl(anything, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))
    os.chdir("/")
    for number in range(3):
        os.dup2(request.stdio[0], number)
    os.execve("/bin/sleep", ["sleep", "infinity"], {})


def dial_in_namespace(request: DialRequest, report: int) -> None:
    """Does not return."""
    _enter(request.netns)
    with socket.create_connection((request.host, request.port), _CONNECTING) as connection:
        connection.setblocking(False)
        with socket.socket(fileno=request.stdio[0]) as waiting:
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
    """Make and enter a user namespace that maps this user to itself and no other user."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        syscalls.unshare(syscalls.CLONE_NEWUSER | more)
    except OSError as error:
        raise RuntimeFailure(f"this user may not make user namespaces ({error.strerror}); {_SWITCHES}") from error
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{file}", "w") as opened:
            opened.write(text)
