"""Network namespaces: create, bind to a file, enter with a thread.

A thread is in one network namespace. Work in another namespace is done by a thread made for it that ends afterwards: a
pooled thread that returned to other work in the wrong namespace would break the isolation. The exception is making a
socket, which happens many times a second: the calling thread enters the namespace and leaves it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from sandpool.node.launcher import syscalls

T = TypeVar("T")

_OWN: Final = "/proc/thread-self/ns/net"


class NetworkNamespace:
    """A network namespace bound to the file ``path``. It lives as long as that file is a mount point."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path, prepare: Callable[[], T]) -> tuple[NetworkNamespace, T]:
        """Make a namespace and run ``prepare`` inside it before it is bound to its file. If that fails, the namespace
        is removed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        namespace = cls(path)

        def work() -> T:
            syscalls.unshare(syscalls.CLONE_NEWNET)
            prepared = prepare()
            path.touch(mode=0o600)
            syscalls.mount(_OWN, str(path), "", syscalls.MS_BIND)
            return prepared

        try:
            return namespace, _in_own_thread(work)
        except BaseException:
            namespace.remove()
            raise

    @property
    def exists(self) -> bool:
        # A bound namespace is on the file system of namespaces, not on that of its directory.
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_dev != self.path.parent.stat().st_dev
        return False

    def call(self, function: Callable[[], T]) -> T:
        """Run a function inside. A socket made there stays in the namespace, whichever thread uses it."""

        def work() -> T:
            self.enter()
            return function()

        return _in_own_thread(work)

    def executor(self) -> ThreadPoolExecutor:
        """A thread that stays inside, for repeated work there."""
        return ThreadPoolExecutor(1, thread_name_prefix=f"in {self.path.name}", initializer=self.enter)

    def enter(self) -> None:
        """Move the calling thread into the namespace."""
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.setns(handle, syscalls.CLONE_NEWNET)
        finally:
            os.close(handle)

    def remove(self) -> None:
        """Unbind the namespace; does nothing if it is gone. The kernel ends it, with its links, once it has no process
        any more."""
        while self.exists:
            syscalls.unmount(str(self.path))
        self.path.unlink(missing_ok=True)


async def connect_inside(namespace: NetworkNamespace, address: tuple[str, int]) -> socket.socket:
    """Return a connected, non-blocking socket that is in the namespace and usable from anywhere."""
    sock = _socket_inside(namespace)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _socket_inside(namespace: NetworkNamespace) -> socket.socket:
    """Make a socket with the calling thread, which is back in its namespace when this returns. A thread of its own
    would take fifty times as long."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespace.enter()
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            _return_to(home)
    finally:
        os.close(home)


def _return_to(home: int) -> None:
    try:
        syscalls.setns(home, syscalls.CLONE_NEWNET)
    except BaseException:  # noqa: BLE001 - the process must not continue
        # Everything this thread did next would happen in the pod's network.
        os.abort()


@contextlib.contextmanager
def open_namespace(path: Path | None) -> Iterator[int]:
    """Open a namespace; None is that of the calling thread."""
    handle = os.open(_OWN if path is None else path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _in_own_thread(work: Callable[[], T]) -> T:
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="in a network namespace")
    thread.start()
    thread.join()
    return outcome.result()
