"""A claimed sandbox, as a program uses it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeVar, overload
from weakref import WeakSet

from sandpool.api import conditions as api
from sandpool.api.kinds import POD, SANDBOX
from sandpool.kube.errors import BadRequest, Forbidden, NotFound
from sandpool.kube.retry import backoff_delay
from sandpool.sdk.attached import ERROR_OUTPUT, AsyncCommand, AsyncShell
from sandpool.sdk.code import AsyncCode, CodeSessionEnded
from sandpool.sdk.errors import Refused, SandboxLost, ServiceUnavailable, service_errors
from sandpool.sdk.files import AsyncFiles
from sandpool.sdk.process import AsyncProcess, AsyncProcesses
from sandpool.sdk.results import MAX_OUTPUT, Output, Result
from sandpool.service.commands import SHELL, Command
from sandpool.service.errors import CommandFailed, NotRunning

if TYPE_CHECKING:
    from sandpool.sdk.client import AsyncClient
    from sandpool.service.claims import Claim
    from sandpool.service.sandboxes import Sandbox

_log: Final = logging.getLogger("sandpool.sdk")
#: Seconds in which the status of a sandbox shows why a command in it was killed.
_DIAGNOSIS: Final = 3.0
_KILLED: Final = 137  # exit code after SIGKILL
#: The terminal of shells, which all terminal emulators understand.
_TERM: Final = "xterm-256color"

A = TypeVar("A", AsyncCommand, AsyncShell)


class Use(Enum):
    """What a program may do to the claim of a sandbox when it releases it."""

    OWN = auto()  # delete it
    SHARED = auto()  # leave it; the last that leaves deletes it
    BORROWED = auto()  # nothing: another program keeps it


class AsyncSandbox:
    """A sandbox that this program has claimed. ``AsyncClient.sandbox`` returns one; ``release`` gives it back."""

    def __init__(self, client: AsyncClient, claim: Claim, sandbox: Sandbox, use: Use = Use.OWN) -> None:
        self._client = client
        self._service = client.service
        self._claim = claim
        self._use = use
        self._sandbox = sandbox
        self._ports = AsyncExitStack()
        self._urls: dict[int, str] = {}
        self._refusals: set[int] = set()  # ports of which a refusal has been logged
        self._attached: WeakSet[AsyncCommand | AsyncShell] = WeakSet()

    @property
    def name(self) -> str:
        """The name of its claim, which the command line uses too: ``sandpool exec NAME``."""
        return self._claim.name

    @property
    def launch(self) -> str:
        """ "warm" if it came from a pool, "cold" if it was created for this claim."""
        return self._sandbox.launch

    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: str | bytes | Iterable[bytes] | None = None,
        stream: Callable[[Output], None] | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Result: ...

    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: Literal[True] | None = None,
        stream: Literal[True],
        max_output: int = MAX_OUTPUT,
    ) -> AsyncCommand: ...

    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: str | bytes | Iterable[bytes] | Literal[True] | None = None,
        stream: Callable[[Output], None] | Literal[True] | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Result | AsyncCommand:
        """Run a command to its end. Text is run by the sandbox's ``sh``, a sequence of words directly.

        After ``timeout`` seconds the command is killed. ``stream`` receives output as it arrives; of all output the
        first ``max_output`` bytes of each stream are in the result. A failed command is a result, not an exception:
        use ``.check()``. Raises ``SandboxLost`` if the sandbox is lost meanwhile.

        With ``stream=True`` the command is returned while it runs: iterate over it for its output, ``kill`` it,
        ``wait`` for it. ``stdin=True`` then opens its standard input for ``send``."""
        words = Command(command, env=env, cwd=cwd)
        if stream is True:
            if stdin not in (None, True):
                raise Refused("with stream=True, stdin is True or None", "Write to the command with its send().")
            words = words._replace(stdin=stdin is True)
            return await self._attach(AsyncCommand, words, timeout, max_output).start()
        if stdin is True:
            raise Refused("stdin=True needs stream=True", "Pass the input as text or bytes.")
        given = stdin.encode() if isinstance(stdin, str) else stdin
        on_output = None if stream is None else lambda piece: stream(Output.of(piece))
        async with self._diagnosed():
            done = await self._service.commands.run(
                self._sandbox, words, stdin=given, timeout=timeout, max_output=max_output, stream=on_output
            )
            await self._ended(done.exit_code)
        return Result(*done)

    def shell(
        self,
        command: str | Sequence[str] = SHELL,
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> AsyncShell:
        """A terminal of this size, by default with the first shell that the image has. Use it as a context manager, or
        ``close`` it: that ends what runs in it."""
        words = Command(command, env={"TERM": _TERM, **(env or {})}, cwd=cwd, tty=True, stdin=True)
        shell = self._attach(AsyncShell, words, None, 0)
        shell.size = (columns, rows)
        return shell

    def _attach(self, kind: type[A], command: Command, timeout: float | None, max_output: int) -> A:
        attached = kind(
            self._service.commands, self._sandbox, self._diagnosed, self._ended, command, timeout, max_output
        )
        self._attached.add(attached)
        return attached

    async def _ended(self, code: int) -> None:
        """Find out whether the end of a command was the end of its sandbox."""
        if code == _KILLED:
            await self._raise_if_lost(wait=_DIAGNOSIS / 3)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        id: str | None = None,  # noqa: A002
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> AsyncProcess:
        """Start a command in the background and return at once. It goes on when this program ends or loses its
        connection; ``process(id)`` finds it again."""
        return await self._processes.start(command, id=id, env=env, cwd=cwd)

    def process(self, id: str) -> AsyncProcess:  # noqa: A002
        """The background process with this ID."""
        return self._processes.get(id)

    async def processes(self) -> list[AsyncProcess]:
        """The background processes, also those that have ended."""
        return await self._processes.list()

    @cached_property
    def _processes(self) -> AsyncProcesses:
        return AsyncProcesses(self._service.commands, self._sandbox, self._diagnosed)

    @cached_property
    def files(self) -> AsyncFiles:
        """Its files."""

        def attach(command: Command) -> AsyncCommand:
            return self._attach(AsyncCommand, command, None, ERROR_OUTPUT)

        return AsyncFiles(self._service.commands, self._service.files, self._sandbox, self._diagnosed, attach)

    @cached_property
    def code(self) -> AsyncCode:
        """Python in it, with state that stays between calls."""
        return AsyncCode(self._service.commands, self._sandbox, self._diagnosed)

    async def url(self, port: int, *, expires: float | None = None) -> str:
        """A URL of a server in the sandbox. It works until the sandbox is released.

        By default it is a local one, which this program serves: if nothing in the sandbox listens on the port, it
        answers 502 and says so, and the logger ``sandpool.sdk`` gets one warning. With ``expires`` it is one of the
        router that needs no program and no token: it lets its reader use this port of this sandbox for that many
        seconds, also in a browser. It cannot be changed to another port, sandbox or time."""
        if expires is not None:
            return self._client.sign_url(self._sandbox.name, port, expires)
        if port not in self._urls:
            async with self._diagnosed():
                forward = self._service.ports.forward(
                    self._sandbox, port, problem=lambda line: self._refused(port, line)
                )
                self._urls[port] = f"http://127.0.0.1:{await self._ports.enter_async_context(forward)}"
        return self._urls[port]

    def _refused(self, port: int, line: str) -> None:
        """Log why the sandbox refused a connection to a local URL, once: a program may wait for its server so."""
        if port not in self._refusals:
            self._refusals.add(port)
            _log.warning("%s", line)

    async def suspend(self, timeout: float = 60.0) -> None:
        """End its processes and keep its volumes, until ``resume``."""
        with service_errors():
            await self._service.sandboxes.suspend(f"sandbox/{self._sandbox.name}")
            self._sandbox = await self._service.sandboxes.wait(self._sandbox.name, suspended=True, timeout=timeout)

    async def resume(self, timeout: float = 120.0) -> None:
        """Start a suspended sandbox again."""
        with service_errors():
            await self._service.sandboxes.resume(f"sandbox/{self._sandbox.name}")
            self._sandbox = await self._service.sandboxes.wait(self._sandbox.name, suspended=False, timeout=timeout)

    async def extend(self, seconds: float) -> None:
        """Let the sandbox live for ``seconds`` from now, also if this program ends before."""
        with service_errors():
            await self._client.leases.extend(self.name, seconds)

    async def release(self) -> None:
        """Give the sandbox back: it is deleted with all that is in it, unless other programs use the one of its key or
        keep it. Idempotent. A task that is cancelled meanwhile ends when that is done."""
        await self._client.finish(self._release())

    async def _release(self) -> None:
        try:
            await self.detach()
        finally:
            await self._client.release(self)

    async def detach(self) -> None:
        """Close the connections to the sandbox and leave it as it is."""
        if "code" in self.__dict__:
            await self.code.close()
        for attached in list(self._attached):
            await attached.close()
        await self._ports.aclose()
        self._urls.clear()

    @asynccontextmanager
    async def _diagnosed(self) -> AsyncIterator[None]:
        """Find out who failed if a command, or the way to it, breaks."""
        try:
            with service_errors():
                yield
        except (NotRunning, CommandFailed, ServiceUnavailable, CodeSessionEnded) as error:
            await self._raise_if_lost(wait=0.0 if isinstance(error, NotRunning) else _DIAGNOSIS)
            if isinstance(error, NotRunning) and not isinstance(error.__cause__, BadRequest):
                raise ServiceUnavailable(error.message, error.advice) from error
            raise

    async def _raise_if_lost(self, wait: float) -> None:
        """Raise ``SandboxLost`` if the API knows within ``wait`` seconds that the sandbox is lost."""
        loop = asyncio.get_running_loop()
        deadline, attempts = loop.time() + wait, 0
        while True:
            with service_errors():
                await self._check_loss()
            if loop.time() >= deadline:
                return
            attempts += 1
            await asyncio.sleep(backoff_delay(attempts, first=0.05, longest=wait))

    async def _is_pod_deleted(self) -> bool:
        try:
            pod = await self._service.client.get(POD, self._sandbox.pod, self._sandbox.namespace)
        except NotFound:
            return True
        except Forbidden:
            return False
        return "deletionTimestamp" in pod["metadata"]

    async def _check_loss(self) -> None:
        known = self._sandbox.object
        try:
            current = await self._service.client.get(SANDBOX, self._sandbox.name, self._sandbox.namespace)
        except NotFound:
            current = None
        if current is None or current["metadata"]["uid"] != known["metadata"]["uid"]:
            message = f'sandbox "{self.name}" is gone: its claim was deleted or has expired'
            raise SandboxLost(message, "Deleted", "Claim another one.")
        conditions = (current.get("status") or {}).get("conditions") or []
        before = api.find_condition((known.get("status") or {}).get("conditions") or [], api.STATE_LOST)
        for kind in (api.STATE_LOST, api.FINISHED):
            found = api.find_condition(conditions, kind)
            if found is not None and found["status"] == api.TRUE and found != before:
                if kind == api.FINISHED and await self._is_pod_deleted():
                    continue  # it has ended because it was stopped; the pod that replaces it shows the loss
                self._sandbox = type(self._sandbox).from_object(current)  # told once
                raise SandboxLost(f'sandbox "{self.name}" lost its state: {found["message"]}', found["reason"])
