"""The launcher itself: one thread, one loop, a fork for every order.

It never waits for a child: to enter a cgroup takes milliseconds when nothing else has done so lately, and many can do
it at the same time. What a child has to say before it executes something comes through a pipe, which ends right then.
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
from typing import Any

from sandpool.node.launcher import kernel
from sandpool.node.launcher.birth import Birth, become_container
from sandpool.node.launcher.call import Call, become_call
from sandpool.node.launcher.entry import Entry, become_command
from sandpool.node.launcher.orders import LONGEST, decode
from sandpool.node.launcher.plain import Plain, become_plain
from sandpool.node.launcher.unprivileged import Dial, Hold, become_dialer, become_holder
from sandpool.node.runtimes.seccomp import program

# Above all descriptors that have a meaning in a child.
_FIRST_FREE = 64
# Of what went wrong, in characters: so much is written at once, and not in pieces between which others write.
_MOST = 500
# But for the agent, with whom we end anyway.
_NOT_MEANT_FOR_US = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class _Child:
    order: int
    pid: int
    pipe: int
    is_itself: bool  # the process that matters, and not one that makes it
    said: bytes = b""


class Launcher:
    def __init__(self, agent: socket.socket) -> None:
        self.agent = agent
        self.filter = program()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Until the agent is gone."""
        for number in _NOT_MEANT_FOR_US:
            signal.signal(number, signal.SIG_IGN)
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
        message, descriptors, _, _ = socket.recv_fds(self.agent, LONGEST, 5, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return False
        number = int(message)
        try:
            with open(descriptors[0], "rb", closefd=False) as file:
                order = decode(file.read(), descriptors[1:], self.filter)
            listening, speaking = os.pipe2(os.O_CLOEXEC)
            pipe = fcntl.fcntl(speaking, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
            os.close(speaking)
            pid = os.fork()
            if pid == 0:
                _child(order, pipe)
            os.close(pipe)
            self._selector.register(
                listening, selectors.EVENT_READ, _Child(number, pid, listening, not isinstance(order, Entry))
            )
        except OSError as error:
            self._answer({"order": number, "error": str(error), "kind": type(error).__name__})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _hear(self, child: _Child) -> None:
        data = os.read(child.pipe, 65536)
        if data:
            child.said += data
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        # In any order: the command may have failed before who has made it says which process it is.
        said: dict[str, Any] = {
            key: value for line in child.said.splitlines() for key, value in json.loads(line).items()
        }
        if not child.is_itself:
            # The one we forked has made the one that matters, our child too, and is gone.
            os.waitpid(child.pid, 0)
            child.pid = said.pop("pid", 0)
        if said or not child.pid:
            if child.pid:
                os.waitpid(child.pid, 0)
            failure = said or {"error": "it was killed", "kind": "ProcessLookupError"}
            self._answer({"order": child.order, **failure})
            return
        pidfd = os.pidfd_open(child.pid)
        self._answer({"order": child.order, "pid": child.pid}, pidfd)
        self._selector.register(pidfd, selectors.EVENT_READ, (child.order, child.pid))

    def _bury(self, pidfd: int, order: int, pid: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._answer({"order": order, "ended": status})

    def _answer(self, answer: dict[str, Any], *descriptors: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the next order will not come, and the loop ends
            socket.send_fds(self.agent, [json.dumps(answer).encode()], descriptors)


def _child(order: Any, pipe: int) -> None:
    """Does not return."""
    try:
        kernel.default_signals()
        match order:
            case Birth():
                become_container(order, pipe)
            case Entry():
                become_command(order, pipe)
            case Plain():
                become_plain(order, pipe)
            case Call():
                become_call(order, pipe)
            case Hold():
                become_holder(order, pipe)
            case Dial():
                become_dialer(order, pipe)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the agent must hear of it, and nothing may go on
        text = " ".join(str(part) for part in error.args if part is not None) if error.args else str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        with suppress(OSError):
            os.write(pipe, json.dumps({"error": text[:_MOST], "kind": type(error).__name__}).encode() + b"\n")
    finally:
        os._exit(1)
