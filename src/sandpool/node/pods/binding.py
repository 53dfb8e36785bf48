"""The variables that a claim handed to a running pod, for commands that the node executes in it.

sandboxd in the pod takes the variables (see ``sandpool.sandboxd.binding``), and what it starts has them. Commands of
``pods/exec`` are not its children. The node is on the way of every bind request, because the request comes through its
own pod access. It checks that the pod is the one that is meant, lets sandboxd decide, and remembers what sandboxd has
acknowledged.

A pod that was created for a late-bound sandbox because the sandbox was resumed, and a container that was restarted, are
bound by the controller soon. Their clients wait for that, so that no command runs without the variables.

The values are kept in memory only. A file in the pod's directory, which only root can read, has a key with which the
next agent recalls them from sandboxd. Values belong to one run of the container: a restarted container is not bound,
and the controller binds it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from sandpool.api.resource import Object
from sandpool.kube.byte_stream import AsyncioByteStream
from sandpool.kube.late_binding import LineStream, decode, exchange, read_line
from sandpool.node.runtimes.runtime import RuntimeFailure

_log = logging.getLogger(__name__)

_FILE: Final = "binding.json"
#: Seconds within which sandboxd must answer.
_SECONDS: Final = 5.0
#: Seconds that clients wait for a run to be bound: two attempts of the controller.
BIND_TIMEOUT: Final = 10.0

#: Connects to sandboxd's port for bindings on the loopback interface of the pod. Raises ``OSError``.
Connect = Callable[[], Awaitable[socket.socket]]


class _Key(msgspec.Struct):
    """The key of the binding of one run of the container."""

    run: str
    key: str


class NotBound(RuntimeFailure):
    """The variables of the claim have not been handed to the pod."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the variables of its claim were not handed over within {seconds:g} s; the condition Ready of the claim"
            " says why"
        )


class PodBinding:
    """``run`` arguments identify the current run of the container in which sandboxd is. ``expected`` says that the
    controller will bind the pod."""

    def __init__(self, directory: Path, uid: str, *, expected: bool = False, timeout: float = BIND_TIMEOUT) -> None:
        self.uid = uid
        self.expected = expected
        self.timeout = timeout
        self._path = directory / _FILE
        self._run: str | None = None  # of ``_values``; None before the first question
        self._values: Mapping[str, str] | None = None  # None: no claim has bound this run
        self._acknowledged = asyncio.Event()  # set, and replaced, by each acknowledgement
        self._recalling = asyncio.Lock()
        self._serving: set[asyncio.Task[None]] = set()

    async def values(self, run: str, connect: Connect) -> Mapping[str, str]:
        """The variables of the claim; empty if no claim binds the pod. Waits for a claim that will. Raises
        ``NotBound``."""
        values = await self._known(run, connect)
        if values is None and self.expected:
            try:
                async with asyncio.timeout(self.timeout):
                    while (values := await self._known(run, connect)) is None:
                        await self._acknowledged.wait()
            except TimeoutError:
                raise NotBound(self.timeout) from None
        return values or {}

    async def _known(self, run: str, connect: Connect) -> Mapping[str, str] | None:
        """The variables of a run; None if no claim has bound it."""
        if self._run != run:
            async with self._recalling:
                if self._run != run:
                    recalled = await self._recalled(run, connect)
                    if self._run != run:  # no claim has bound it meanwhile
                        self._values, self._run = recalled, run
        return self._values

    async def connection(self, run: str, connect: Connect) -> socket.socket:
        """Return a connected, non-blocking socket on which one bind request is served. Raises ``OSError``."""
        inside = await connect()
        theirs, ours = socket.socketpair()
        for each in (theirs, ours):
            each.setblocking(False)
        task = asyncio.create_task(self._serve(ours, inside, run), name=f"binding of pod {self.uid}")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return theirs

    async def _serve(self, ours: socket.socket, inside: socket.socket, run: str) -> None:
        client = AsyncioByteStream(*await asyncio.open_connection(sock=ours))
        sandboxd = AsyncioByteStream(*await asyncio.open_connection(sock=inside))
        try:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    answer = await self._bind(decode(await read_line(client)), sandboxd, run)
                    await client.send(msgspec.json.encode(answer) + b"\n")
        finally:
            await sandboxd.close()
            await client.close()

    async def _bind(self, message: Object, sandboxd: LineStream, run: str) -> Object:
        request = message.get("bind")
        if not isinstance(request, dict):
            return {"error": "Denied", "message": "only bind requests are passed on"}
        if request.get("pod") != self.uid:
            return {"error": "WrongPod", "message": "the pod has been replaced"}
        key = await asyncio.to_thread(self._key_for, run)
        answer = await exchange(sandboxd, {"bind": {**request, "key": key}})
        # What of it is not known here is not passed on: the sandbox is not trusted.
        answer = {name: answer[name] for name in ("claim", "first", "error") if name in answer}
        if "error" not in answer:
            if answer.get("first"):
                self._values, self._run = _variables(request.get("values")), run
            else:  # the values of the first request stay
                self._run = None
            self._acknowledged.set()
            self._acknowledged = asyncio.Event()
        return answer

    async def _recalled(self, run: str, connect: Connect) -> Mapping[str, str] | None:
        """What sandboxd has of the claim's variables; None if no claim has bound this run."""
        known = self._read()
        if known is None or known.run != run:
            self.expected = self.expected or known is not None  # an earlier run was bound
            return None
        stream: AsyncioByteStream | None = None
        try:
            async with asyncio.timeout(_SECONDS):
                stream = AsyncioByteStream(*await asyncio.open_connection(sock=await connect()))
                answer = await exchange(stream, {"recall": known.key})
                return None if "error" in answer else _variables(answer.get("values"))
        except (OSError, TimeoutError) as error:
            _log.warning("commands in pod %s run without the variables of its claim: %s", self.uid, error)
            return {}
        finally:
            if stream is not None:
                await stream.close()

    def _key_for(self, run: str) -> str:
        """Return the key of this run, written if there is none: sandboxd keeps the first one."""
        known = self._read()
        if known is not None and known.run == run:
            return known.key
        self.expected = self.expected or known is not None
        key = _Key(run, secrets.token_hex(16))
        draft = self._path.with_name(f".{_FILE}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            file.write(msgspec.json.encode(key))
        draft.rename(self._path)
        return key.key

    def _read(self) -> _Key | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Key)
        except (OSError, msgspec.MsgspecError):
            return None


def _variables(values: Any) -> Mapping[str, str]:
    """The variables as sandboxd reports them, which is not trusted."""
    if not isinstance(values, dict):
        return {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, str) and name and "=" not in name and "\0" not in name + value
    }
