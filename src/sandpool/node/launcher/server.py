"""The launcher itself: one thread, one loop, a fork for every order.

It never waits for a child. What a child has to say before it executes something comes through a pipe, which ends right
then.

A child is born in its cgroup where the kernel can do that. Whoever is born elsewhere and moves there waits for a grace
period of RCU, which is ten milliseconds if nobody has moved lately.
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
# But for the agent, with whom we end anyway; and that it is gone is seen where we speak to it.
_NOT_MEANT_FOR_US = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


@dataclass(slots=True)
class _Child:
    order: int
    pid: int
    pipe: int
    said: bytes = b""


class Launcher:
    def __init__(self, agent: socket.socket) -> None:
        self.agent = agent
        self.filter = program()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Until the agent is gone."""
        syscalls.default_signals()
        for number in _NOT_MEANT_FOR_US:
            signal.signal(number, signal.SIG_IGN)
        self.agent.set_inheritable(False)
        # What is there now is never looked at by the garbage collector again: it would write to every page, and a page
        # that is written to has to be copied for each child.
        gc.freeze()
        gc.disable()
        self._selector.register(self.agent, selectors.EVENT_READ, None)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    if not self._take_order():
                        return
                elif isinstance(key.data, _Child):
                    self._hear(key.data)
                else:
                    self._bury(key.fd, *key.data)

    def _take_order(self) -> bool:
        received = receive_request(self.agent)
        if received is None:
            return False
        try:
            order = decode(received.data, received.descriptors, self.filter)
            listening, speaking = os.pipe2(os.O_CLOEXEC)
            pipe = fcntl.fcntl(speaking, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
            os.close(speaking)
            try:
                pid = _fork(order, pipe)
            except OSError:
                os.close(listening)
                raise
            finally:
                os.close(pipe)
            self._selector.register(listening, selectors.EVENT_READ, _Child(received.number, pid, listening))
        except OSError as error:
            answer(self.agent, {"order": received.number, **error_reply(error)})
        finally:
            for descriptor in received.descriptors:
                os.close(descriptor)
        return True

    def _hear(self, child: _Child) -> None:
        data = os.read(child.pipe, 65536)
        if data:
            child.said += data
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        if child.said:
            os.waitpid(child.pid, 0)
            answer(self.agent, {"order": child.order, **json.loads(child.said)})
            return
        pidfd = os.pidfd_open(child.pid)
        answer(self.agent, {"order": child.order, "pid": child.pid}, pidfd)
        self._selector.register(pidfd, selectors.EVENT_READ, (child.order, child.pid))

    def _bury(self, pidfd: int, order: int, pid: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        answer(self.agent, {"order": order, "ended": status})


def _fork(order: LaunchRequest, pipe: int) -> int:
    """The PID of the child who carries it out."""
    pid = None
    if (
        not isinstance(order, HoldNamespacesRequest | DialRequest)
        and order.join_files
        and os.path.basename(order.join_files[0]) == CGROUP_PROCS
    ):
        pid = _fork_into(os.path.dirname(order.join_files[0]))
        if pid == 0:
            order = order._replace(join_files=order.join_files[1:])
    if pid is None:
        pid = os.fork()
    if pid == 0:
        _child(order, pipe)
    return pid


def _fork_into(directory: str) -> int | None:
    """None if that cannot be done here."""
    cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return syscalls.fork_into(cgroup)
    except NotImplementedError:
        return None
    finally:
        os.close(cgroup)


def _child(order: LaunchRequest, pipe: int) -> NoReturn:
    try:
        for number in _NOT_MEANT_FOR_US:
            signal.signal(number, signal.SIG_DFL)
        match order:
            case ContainerRequest():
                become_container(order, pipe)
            case EnterRequest():
                become_exec_agent(order, pipe)
            case UnconfinedRequest():
                become_unconfined(order, pipe)
            case RunscCallRequest():
                become_runsc_call(order, pipe)
            case HoldNamespacesRequest():
                hold_namespaces(order, pipe)
            case DialRequest():
                dial_in_namespace(order, pipe)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the agent must hear of it, and nothing may go on
        with suppress(OSError):
            os.write(pipe, json.dumps(error_reply(error)).encode())
    finally:
        os._exit(1)
