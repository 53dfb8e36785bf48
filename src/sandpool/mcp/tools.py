"""The tools: names and parameters are those of the MCP server that the agent-sandbox project publishes, and some more.

Docstrings and field descriptions are for the language model that reads them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Annotated, Any, Final, cast

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field

from sandpool.mcp.code_content import content_of
from sandpool.mcp.sessions import READY_TIMEOUT, Metadata, Session, Sessions
from sandpool.sdk.results import Output
from sandpool.sdk.sandbox import AsyncSandbox
from sandpool.service.errors import FileError, ServiceError

#: Bytes of each kind of output that a result has. Models read all of it.
MAX_OUTPUT: Final = 64 << 10
#: Bytes of a file in one call.
MAX_FILE: Final = 1 << 20
_SESSION_HEADER: Final = "mcp-session-id"

Claim = Annotated[str | None, Field(description="Which sandbox. Default: the sandbox of this session.")]
Namespace = Annotated[str | None, Field(description="Leave it out; this server uses one namespace.")]
Path = Annotated[str, Field(description="Relative paths begin in the working directory.")]
Timeout = Annotated[float, Field(ge=1, le=600, description="Seconds after which it is killed.")]
Binary = Annotated[bool, Field(description="Content is base64 instead of text.")]


class CreatedSandbox(BaseModel):
    sandbox_claim_name: str


class CommandResult(BaseModel):
    exit_code: int
    stdout: str
    stderr: str
    truncated: bool = Field(description="Output beyond the limit was dropped.")
    stdout_size: int = Field(description="Bytes that the command wrote to stdout, with those that were dropped.")
    stderr_size: int = Field(description="Bytes that the command wrote to stderr, with those that were dropped.")
    timed_out: bool


class UploadResult(BaseModel):
    bytes_written: int


class DownloadResult(BaseModel):
    content: str
    bytes_read: int


class Entry(BaseModel):
    name: str
    size: int
    type: str
    mod_time: str


class Listing(BaseModel):
    entries: list[Entry]
    total_entries: int
    truncated: bool


class Existence(BaseModel):
    exists: bool


class OpenPort(BaseModel):
    url: str
    expires_seconds: int


class SandboxNames(BaseModel):
    sandbox_claim_names: list[str]


class Tools:
    """The tools of one server. ``over_http`` tells whether clients are told apart by HTTP sessions."""

    def __init__(self, sessions: Sessions, *, over_http: bool = False, max_output: int = MAX_OUTPUT) -> None:
        self._sessions = sessions
        self._over_http = over_http
        self._max_output = max_output

    def all(self) -> list[Callable[..., Any]]:
        return [
            *(self.create_sandbox, self.delete_sandbox, self.list_sandboxes, self.execute_command, self.run_code),
            *(self.upload_file, self.download_file, self.list_files, self.file_exists, self.open_port),
        ]

    def names(self, ctx: Context, namespace: str) -> list[str]:
        """The names of the claims of the session of a request."""
        return self._session(ctx, namespace).names()

    async def create_sandbox(
        self,
        ctx: Context,
        warmpool: Annotated[str | None, Field(description="Pool of warm sandboxes. Default: the usual one.")] = None,
        namespace: Namespace = None,
        sandbox_ready_timeout: Annotated[float, Field(ge=1, le=3600)] = READY_TIMEOUT,
        labels: Annotated[dict[str, str] | None, Field(description="Labels of the SandboxClaim.")] = None,
        shutdown_after_seconds: Annotated[
            float | None, Field(ge=1, description="Release it when it was not used for so long.")
        ] = None,
        pod_labels: Annotated[dict[str, str] | None, Field(description="Labels of its pod, as far as allowed.")] = None,
        pod_annotations: Annotated[dict[str, str] | None, Field(description="Annotations of its pod.")] = None,
    ) -> CreatedSandbox:
        """Make a sandbox: an isolated Linux machine with Python. Only needed for more than one sandbox, or if other
        tools ask for a sandbox_claim_name."""
        session = self._session(ctx, namespace)
        with _tool_errors():
            made = await session.create(
                warmpool,
                timeout=sandbox_ready_timeout,
                idle=shutdown_after_seconds,
                metadata=Metadata(labels, pod_labels, pod_annotations),
            )
        return CreatedSandbox(sandbox_claim_name=made.name)

    async def delete_sandbox(self, ctx: Context, sandbox_claim_name: str, namespace: Namespace = None) -> None:
        """Release a sandbox: it is deleted with all files in it."""
        with _tool_errors():
            await self._session(ctx, namespace).release(sandbox_claim_name)

    async def list_sandboxes(self, ctx: Context, namespace: Namespace = None) -> SandboxNames:
        """List the sandboxes of this session."""
        own = self._sessions.client.service.namespace
        return SandboxNames(sandbox_claim_names=self.names(ctx, namespace or own))

    async def execute_command(
        self,
        ctx: Context,
        command: Annotated[str, Field(description="A command line for sh.")],
        sandbox_claim_name: Claim = None,
        namespace: Namespace = None,
        timeout: Timeout = 60,
    ) -> CommandResult:
        """Run a shell command in a sandbox. Files stay between calls; processes in the background go on."""
        async with self._sandbox(ctx, sandbox_claim_name, namespace) as sandbox, self._streamed(ctx) as stream:
            done = await sandbox.run(command, timeout=timeout, max_output=self._max_output, stream=stream)
        return CommandResult(
            exit_code=done.exit_code,
            stdout=done.stdout,
            stderr=done.stderr,
            truncated=done.truncated,
            stdout_size=done.stdout_size,
            stderr_size=done.stderr_size,
            timed_out=done.timed_out,
        )

    async def run_code(
        self,
        ctx: Context,
        code: Annotated[str, Field(description="Python. The value of the last expression is shown.")],
        sandbox_claim_name: Claim = None,
        namespace: Namespace = None,
        timeout: Timeout = 60,
    ) -> CallToolResult:
        """Run Python code in a sandbox. Variables and imports stay between calls; figures of matplotlib are returned
        as pictures."""
        async with self._sandbox(ctx, sandbox_claim_name, namespace) as sandbox, self._streamed(ctx) as stream:
            done = await sandbox.code.run(code, timeout=timeout, stream=stream, max_output=self._max_output)
        return CallToolResult(content=content_of(done, self._max_output), is_error=done.error is not None)

    async def upload_file(
        self,
        ctx: Context,
        path: Path,
        content: str,
        sandbox_claim_name: Claim = None,
        namespace: Namespace = None,
        binary: Binary = False,
        timeout: Timeout = 60,
    ) -> UploadResult:
        """Write a file into a sandbox. Missing directories are made, an existing file is replaced."""
        try:
            data = base64.b64decode(content, validate=True) if binary else content.encode()
        except ValueError as error:
            raise ToolError(f"the content is not {'base64' if binary else 'UTF-8'}: {error}") from None
        async with self._sandbox(ctx, sandbox_claim_name, namespace, timeout) as sandbox:
            await sandbox.files.write(path, data)
        return UploadResult(bytes_written=len(data))

    async def download_file(
        self,
        ctx: Context,
        path: Path,
        sandbox_claim_name: Claim = None,
        namespace: Namespace = None,
        binary: Binary = False,
        timeout: Timeout = 60,
    ) -> DownloadResult:
        """Read a file of a sandbox, of up to 1 MiB."""
        data = bytearray()
        async with (
            self._sandbox(ctx, sandbox_claim_name, namespace, timeout) as sandbox,
            aclosing(cast("Any", sandbox.files.stream(path))) as pieces,
        ):
            async for piece in pieces:
                data += piece
                if len(data) > MAX_FILE:
                    raise FileError(f"{path} is larger than {MAX_FILE} bytes", "Read a part of it with a command.")
        if binary:
            return DownloadResult(content=base64.b64encode(data).decode(), bytes_read=len(data))
        try:
            return DownloadResult(content=data.decode(), bytes_read=len(data))
        except UnicodeDecodeError:
            raise ToolError(f"{path} is not UTF-8 text; read it with binary=true") from None

    async def list_files(
        self,
        ctx: Context,
        path: Path = ".",
        sandbox_claim_name: Claim = None,
        namespace: Namespace = None,
        timeout: Timeout = 60,
        max_entries: Annotated[int, Field(ge=1, le=10000)] = 1000,
    ) -> Listing:
        """List a directory of a sandbox."""
        async with self._sandbox(ctx, sandbox_claim_name, namespace, timeout) as sandbox:
            found = await sandbox.files.entries(path or ".")
        entries = [
            Entry(
                name=each.name.encode(errors="surrogateescape").decode(errors="replace"),
                size=each.size,
                type=each.type if each.link is None else "link",
                mod_time=each.modified.isoformat(timespec="seconds"),
            )
            for each in found[:max_entries]
        ]
        return Listing(entries=entries, total_entries=len(found), truncated=len(found) > max_entries)

    async def file_exists(
        self,
        ctx: Context,
        path: Path,
        sandbox_claim_name: Claim = None,
        namespace: Namespace = None,
        timeout: Timeout = 60,
    ) -> Existence:
        """Tell whether a sandbox has a file or directory."""
        async with self._sandbox(ctx, sandbox_claim_name, namespace, timeout) as sandbox:
            return Existence(exists=await sandbox.files.exists(path))

    async def open_port(
        self,
        ctx: Context,
        port: Annotated[int, Field(ge=1, le=65535)],
        sandbox_claim_name: Claim = None,
        namespace: Namespace = None,
        expires_seconds: Annotated[int, Field(ge=1, le=86400)] = 3600,
    ) -> OpenPort:
        """Get a URL of a web server that listens on a port in a sandbox. Every holder of the URL can use it until it
        expires or the sandbox is released."""
        async with self._sandbox(ctx, sandbox_claim_name, namespace) as sandbox:
            url = await sandbox.url(port, expires=expires_seconds)
        return OpenPort(url=url, expires_seconds=expires_seconds)

    def _session(self, ctx: Context, namespace: str | None) -> Session:
        own = self._sessions.client.service.namespace
        if namespace not in (None, own):
            raise ToolError(f'this server uses the namespace "{own}"; leave namespace out')
        if not self._over_http:
            return self._sessions.local()
        # Without sessions in the protocol, the header is whatever the client likes.
        id = (ctx.headers or {}).get(_SESSION_HEADER)  # noqa: A001
        if id is None or ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return self._sessions.shared()
        return self._sessions.over_http(id)

    @asynccontextmanager
    async def _sandbox(
        self, ctx: Context, name: str | None, namespace: str | None, timeout: float | None = None
    ) -> AsyncIterator[AsyncSandbox]:
        session = self._session(ctx, namespace)
        with _tool_errors():
            async with session.use(name) as sandbox:
                try:
                    async with asyncio.timeout(timeout):
                        yield sandbox
                except TimeoutError:
                    raise ToolError(f"it took longer than {timeout:g} s") from None

    @asynccontextmanager
    async def _streamed(self, ctx: Context) -> AsyncIterator[Callable[[Output], None]]:
        """Send output as progress notifications while it arrives, up to the limit of results."""
        pieces: asyncio.Queue[Output | None] = asyncio.Queue()
        room = 2 * self._max_output

        def put(piece: Output) -> None:
            nonlocal room
            if room > 0:
                pieces.put_nowait(piece._replace(data=piece.data[:room]))
                room -= len(piece.data)

        async def send() -> None:
            sent = 0
            while (piece := await pieces.get()) is not None:
                sent += len(piece.data)
                await ctx.report_progress(sent, message=piece.text)

        sending = asyncio.create_task(send(), name="progress of a tool")
        try:
            yield put
            pieces.put_nowait(None)
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Turn errors that the model or its user can do something about into tool errors, which the model reads."""
    try:
        yield
    except ServiceError as error:
        raise ToolError(str(error)) from error
