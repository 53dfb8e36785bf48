"""The launcher process: one thread, one loop, a fork for every request.

It never blocks on a child. A child reports errors through a pipe, which is closed when the child executes a program.

Where the kernel supports it, a child is created directly in its cgroup. Moving it there later would wait for an RCU
grace period, which takes ten milliseconds if no process was moved recently.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import selectors
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from sandpool.node.cgroups.process_identity import CGROUP_PROCS
from sandpool.node.launcher import syscalls
from sandpool.node.launcher.enter import EnterRequest, become_exec_agent
from sandpool.node.launcher.messages import answer, error_reply, receive_request
from sandpool.node.launcher.requests import LaunchRequest, decode
from sandpool.node.launcher.runsc_call import RunscCallRequest, become_runsc_call
from sandpool.node.launcher.spawn_container import ContainerRequest, become_container
from sandpool.node.launcher.unconfined import UnconfinedRequest, become_unconfined
from sandpool.node.launcher.unprivileged import DialRequest, HoldNamespacesRequest, dial_in_namespace, hold_namespaces
from sandpool.node.runtimes.seccomp import program

# Above all descriptors that have a meaning in a child.
_FIRST_FREE = 64
# The launcher ends with the agent, whose end it sees at the socket, so it ignores signals meant for the agent.
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


@dataclass(slots=True)
class _Child:
    number: int
    pid: int
    pipe: int
    error: bytes = b""


class Launcher:
    def __init__(self, agent: socket.socket) -> None:
        self.agent = agent
        self.filter = program()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve requests until the agent is gone."""
        syscalls.default_signals()
        for number in _IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.agent.set_inheritable(False)
        # The garbage collector must not touch existing objects: it would write to every page, and a written page is
        # copied for each child.
        gc.freeze()
        gc.disable()
        self._selector.register(self.agent, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    if not self._serve_request():
                        return
                elif isinstance(key.data, _Child):
                    self._read_report(key.data)
                else:
                    self._reap(key.fd, *key.data)

    def _serve_request(self) -> bool:
        received = receive_request(self.agent)
        if received is None:
            return False
        try:
            request = decode(received.data, received.descriptors, self.filter)
            listening, speaking = os.pipe2(os.O_CLOEXEC)
            pipe = fcntl.fcntl(speaking, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
            os.close(speaking)
            try:
                pid = _fork(request, pipe)
            except OSError:
                os.close(listening)
                raise
            finally:
                os.close(pipe)
            self._selector.register(listening, selectors.EVENT_READ, _Child(received.number, pid, listening))
        except OSError as error:
            answer(self.agent, {"request": received.number, **error_reply(error)})
        finally:
            for descriptor in received.descriptors:
                os.close(descriptor)
        return True

    def _read_report(self, child: _Child) -> None:
        data = os.read(child.pipe, 65536)
        if data:
            child.error += data
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        if child.error:
            os.waitpid(child.pid, 0)
            answer(self.agent, {"request": child.number, **json.loads(child.error)})
            return
        pidfd = os.pidfd_open(child.pid)
        answer(self.agent, {"request": child.number, "pid": child.pid}, pidfd)
        self._selector.register(pidfd, selectors.EVENT_READ, (child.number, child.pid))

    def _reap(self, pidfd: int, number: int, pid: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        answer(self.agent, {"request": number, "ended": status})


def _fork(request: LaunchRequest, pipe: int) -> int:
    """Fork a child that executes the request, and return its PID."""
    pid = None
    if (
        not isinstance(request, HoldNamespacesRequest | DialRequest)
        and request.join_files
        and os.path.basename(request.join_files[0]) == CGROUP_PROCS
    ):
        pid = _fork_into(os.path.dirname(request.join_files[0]))
        if pid == 0:
            request = request._replace(join_files=request.join_files[1:])
    if pid is None:
        pid = os.fork()
    if pid == 0:
        _child(request, pipe)
    return pid


def _fork_into(directory: str) -> int | None:
    """Fork a child in a cgroup; None if the kernel does not support it."""
    cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return syscalls.fork_into(cgroup)
    except NotImplementedError:
        return None
    finally:
        os.close(cgroup)


def _child(request: LaunchRequest, pipe: int) -> NoReturn:
    try:
        for number in _IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        match request:
            case ContainerRequest():
                become_container(request, pipe)
            case EnterRequest():
                become_exec_agent(request, pipe)
            case UnconfinedRequest():
                become_unconfined(request, pipe)
            case RunscCallRequest():
                become_runsc_call(request, pipe)
            case HoldNamespacesRequest():
                hold_namespaces(request, pipe)
            case DialRequest():
                dial_in_namespace(request, pipe)
    except BaseException as error:  # noqa: BLE001 - report it to the agent, and exit in any case
        with suppress(OSError):
            os.write(pipe, json.dumps(error_reply(error)).encode())
    finally:
        os._exit(1)
