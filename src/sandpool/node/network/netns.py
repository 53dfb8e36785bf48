"""Network namespaces: made, given a name in the file system, entered by a thread.

A namespace belongs to a thread. Whatever is done in one is done by a thread that was made for it and does nothing else
afterwards, because a thread that comes back to other work in the wrong namespace is a hole in every wall we build. One
thing is done without such a thread, because somebody waits for it many times a second: making a socket.
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

_MINE: Final = "/proc/thread-self/ns/net"


class NetworkNamespace:
    """A network namespace that lives as long as its file at ``path`` is a mount."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path, prepare: Callable[[], T]) -> tuple[NetworkNamespace, T]:
        """A new one, after ``prepare`` has run inside it. If that fails, there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        namespace = cls(path)

        def work() -> T:
            syscalls.unshare(syscalls.CLONE_NEWNET)
            prepared = prepare()
            path.touch(mode=0o600)
            syscalls.mount(_MINE, str(path), "", syscalls.MS_BIND)
            return prepared

        try:
            return namespace, _alone(work)
        except BaseException:
            namespace.remove()
            raise

    @property
    def exists(self) -> bool:
        # The file system of namespaces is not the one the directory is on.
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_dev != self.path.parent.stat().st_dev
        return False

    def call(self, function: Callable[[], T]) -> T:
        """Run something inside. Sockets made there stay there, whoever uses them."""

        def work() -> T:
            self.enter()
            return function()

        return _alone(work)

    def executor(self) -> ThreadPoolExecutor:
        """A thread that stays inside, for work that keeps state there."""
        return ThreadPoolExecutor(1, thread_name_prefix=f"in {self.path.name}", initializer=self.enter)

    def enter(self) -> None:
        """Take the calling thread in, for good."""
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.setns(handle, syscalls.CLONE_NEWNET)
        finally:
            os.close(handle)

    def remove(self) -> None:
        """The kernel ends it, with the links in it, once nobody is inside any more. Removing twice is no mistake."""
        while self.exists:
            syscalls.unmount(str(self.path))
        self.path.unlink(missing_ok=True)


async def connect_inside(namespace: NetworkNamespace, address: tuple[str, int]) -> socket.socket:
    """A connected, non-blocking socket: made inside, usable anywhere."""
    sock = _socket_inside(namespace)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _socket_inside(namespace: NetworkNamespace) -> socket.socket:
    """By the calling thread, which is back when this returns: a thread of its own would take fifty times as long, and
    wait for its turn with the others twice."""
    home = os.open(_MINE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespace.enter()
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            _return(home)
    finally:
        os.close(home)


def _return(home: int) -> None:
    try:
        syscalls.setns(home, syscalls.CLONE_NEWNET)
    except BaseException:  # noqa: BLE001 - nothing may go on here
        # Whatever this thread did next, it would do in the pod's network.
        os.abort()


@contextlib.contextmanager
def open_namespace(path: Path | None) -> Iterator[int]:
    """A handle for the kernel's interfaces; None is where the calling thread is."""
    handle = os.open(_MINE if path is None else path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _alone(work: Callable[[], T]) -> T:
    """In a thread of its own."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="in a network namespace")
    thread.start()
    thread.join()
    return outcome.result()
