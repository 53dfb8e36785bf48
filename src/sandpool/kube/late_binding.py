"""Late binding, from the outside: hands the variables of a claim to the sandboxd of a warm sandbox.

sandboxd listens on a port of the pod's loopback interface (``sandboxd.binding``). There are two ways to it, and neither
opens anything that was closed: in the process of the node through ``PodAccess``, and from anywhere else through a
port-forward, for which the API server has authenticated and authorized the controller. Network policies do not apply to
loopback. Both ways pass the node, which keeps the values for ``pods/exec`` if it is one of ours.

A message is one line of JSON, and so is its answer. Values never appear in a ``repr`` or in the text of an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from sandpool.api.resource import Object, SharedObject
from sandpool.kube.byte_stream import AsyncioByteStream
from sandpool.kube.errors import ApiError, Forbidden
from sandpool.kube.pod_access import PodAccess, PodAccessError

if TYPE_CHECKING:
    from sandpool.kube.pod_client import PodClient

#: The port of sandboxd on the loopback interface of its pod.
PORT: Final = 8879
#: Longest message, in bytes.
MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class BindRequest:
    """The variables of a claim for one pod. ``pod`` is at least its metadata and node."""

    pod: SharedObject
    claim_uid: str
    values: Mapping[str, str] = field(repr=False)

    def message(self) -> Object:
        """The request as sent. The node checks that the pod is the one that the controller means."""
        return {"bind": {"claim": self.claim_uid, "pod": self.pod["metadata"]["uid"], "values": dict(self.values)}}


class BindingUnavailable(Exception):
    """Nothing in the pod takes variables now."""


class BindingForbidden(BindingUnavailable):
    """The controller may not connect to the pod."""


class BindingRefused(Exception):
    """sandboxd or its node refused the request."""

    def __init__(self, reason: str) -> None:
        super().__init__(_REFUSALS.get(reason, "it refused them for a reason that is not known here"))
        self.reason = reason if reason in _REFUSALS else ""


# Why a request is refused. A text of the sandbox is never repeated: it could contain the values.
_REFUSALS: Final = {
    "BoundToAnother": "it is bound to another claim",
    "Invalid": "it did not understand them",
    "Denied": "its node refused them",
    "WrongPod": "its pod has been replaced",
}


class Binder(Protocol):
    async def bind(self, request: BindRequest) -> None:
        """Return when the sandbox has acknowledged. Idempotent for one claim.

        Raises ``BindingUnavailable`` or ``BindingRefused``, and ``OSError`` if the answer is lost."""
        ...


class LineStream(Protocol):
    async def receive(self) -> bytes: ...

    async def send(self, data: bytes) -> None: ...


async def exchange(stream: LineStream, message: Object) -> Object:
    """Send a message and return its answer. Raises ``ConnectionError`` if there is none."""
    await stream.send(orjson.dumps(message) + b"\n")
    return decode(await read_line(stream))


async def read_line(stream: LineStream) -> bytes:
    """Read up to the end of a line. Raises ``ConnectionError``."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = await stream.receive()
        if not piece:
            raise ConnectionError("the connection ended within a message")
        line += piece
        if len(line) > MAX_BYTES:
            raise ConnectionError("the message is too long")
    return bytes(line)


def decode(line: bytes) -> Object:
    """Decode a message. Raises ``ConnectionError``."""
    try:
        decoded = orjson.loads(line)
    except orjson.JSONDecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        raise ConnectionError("the message is not a JSON object")
    return decoded


def acknowledged(answer: Object, claim_uid: str) -> None:
    """Raise ``BindingRefused`` unless the answer acknowledges this claim."""
    if "error" in answer:
        raise BindingRefused(str(answer["error"]))
    if answer.get("claim") != claim_uid:
        raise BindingRefused("BoundToAnother")


Dial = Callable[[SharedObject], AbstractAsyncContextManager[LineStream]]


class StreamBinder:
    """Binds over a connection to the pod, which ``dial`` opens."""

    def __init__(self, dial: Dial) -> None:
        self.dial = dial

    async def bind(self, request: BindRequest) -> None:
        async with self.dial(request.pod) as stream:
            acknowledged(await exchange(stream, request.message()), request.claim_uid)


def through_pod_access(pod_access: PodAccess) -> Dial:
    """Connect in the process of the node."""

    @asynccontextmanager
    async def dial(pod: SharedObject) -> AsyncIterator[LineStream]:
        try:
            sock = await pod_access.dial(pod, PORT, {})
        except (ConnectionRefusedError, PodAccessError) as error:
            raise BindingUnavailable(str(error)) from error
        stream = AsyncioByteStream(*await asyncio.open_connection(sock=sock))
        try:
            yield stream
        finally:
            await stream.close()

    return dial


def through_port_forward(pods: PodClient) -> Dial:
    """Connect through the API server."""
    from sandpool.kube.port_forward import PortForward  # most homes do without

    @asynccontextmanager
    async def dial(pod: SharedObject) -> AsyncIterator[LineStream]:
        metadata = pod["metadata"]
        try:
            tunnel = await pods.tunnel(metadata["namespace"], metadata["name"])
        except Forbidden as error:
            raise BindingForbidden("the controller may not create pods/portforward") from error
        except ApiError as error:
            raise BindingUnavailable(f"the API server does not forward ports of the pod: {error.message}") from error
        async with PortForward(tunnel) as session:
            connection = await session.connect(PORT)
            try:
                yield connection
            except ConnectionError as error:
                refusal = ""
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        refusal = await connection.refusal()
                if not refusal:
                    raise
                raise BindingUnavailable(refusal) from error

    return dial


class LocalBinder:
    """Binds pods of the node in this process directly, and all others through ``elsewhere``.

    ``pod_access`` returns None until the node is there."""

    def __init__(self, pod_access: Callable[[], PodAccess | None], elsewhere: Binder | None = None) -> None:
        self.pod_access = pod_access
        self.elsewhere = elsewhere

    async def bind(self, request: BindRequest) -> None:
        pod_access = self.pod_access()
        if pod_access is not None and pod_access.serves(request.pod):
            await StreamBinder(through_pod_access(pod_access)).bind(request)
        elif self.elsewhere is not None:
            await self.elsewhere.bind(request)
        else:
            raise BindingUnavailable("the pod is on a node of another process")
