"""One request and its response, between the connection of a client and a connection to a sandbox.

Bytes are forwarded as they arrive, in both directions, and a slow reader slows the writer down. Only heads are kept in
memory, and of a request body the part that arrives before the sandbox is connected.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sandpool.api.labels import INJECT_RUNTIME
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.headers import (
    CHUNKED,
    LAST_CHUNK,
    RequestHeaders,
    ResponseHeaders,
    chunk,
    connection_line,
    content_length,
    error_response,
    json_response,
    without_body,
)
from sandpool.router.http1 import MalformedMessage, ResponseHead
from sandpool.router.signed_urls import without_token
from sandpool.router.targets import Target
from sandpool.router.upstream import Upstream

if TYPE_CHECKING:
    from sandpool.router.downstream import Downstream

# Bytes of a request body that are kept until the sandbox is connected. Then reading pauses.
_MAX_EARLY_BYTES: Final = 1 << 18
_SAFE_METHODS: Final = (b"GET", b"HEAD", b"OPTIONS")


class Exchange:
    """One request and its response. ``begin`` forwards it; then ``Downstream`` and ``Upstream`` drive it."""

    def __init__(self, downstream: Downstream, method: bytes, target: bytes, headers: RequestHeaders) -> None:
        self.downstream = downstream
        self.method = method
        self.target = target
        self.headers = headers
        self.keep = headers.keeps_alive  # the connection of the client, after the response
        self.is_received = False  # the whole request
        self.has_begun = False
        self.deadline: float | None = None  # of the response, in the time of the event loop
        self.status = 0  # of the response, once its head was forwarded
        self.sent = 0  # bytes of the response body
        self._early: list[bytes] = []  # request body that arrived before the sandbox was connected
        self._early_size = 0
        self._after_upgrade = b""  # bytes that arrived behind a request for another protocol
        self._upstream: Upstream | None = None
        self._chunked_out = False
        self._until_close = False  # the response to the client ends with the connection
        self._out: list[bytes] = []  # parts of the response that are written together
        self._task: asyncio.Task[None] | None = None
        self._is_done = False
        self._namespace = ""  # of the sandbox, once it was resolved
        self._started = downstream.router.clock.monotonic()
        downstream.router.metrics.inflight += 1

    def begin(self) -> None:
        """Forward the request; at once, unless something must be waited for."""
        if self._is_done or self.has_begun:
            return
        self.has_begun = True
        try:
            if not self._forward_at_once():
                self._task = asyncio.create_task(self._connect())
        except RequestRejected as rejection:
            self._reject(rejection)

    # --- the request -------------------------------------------------------------------------------------------------

    def request_data(self, data: bytes) -> None:
        if self._is_done:
            return
        if self._upstream is None:
            self._early.append(data)
            self._early_size += len(data)
            if self._early_size > _MAX_EARLY_BYTES:
                self.downstream.transport.pause_reading()
        else:
            self._upstream.write(chunk(data) if self.headers.framing.is_chunked else data)

    def request_ended(self) -> None:
        self.is_received = True
        if self._upstream is not None and self.headers.framing.is_chunked and not self._is_done:
            self._upstream.write(LAST_CHUNK)

    def request_malformed(self, rejection: RequestRejected) -> None:
        """The rest of the body cannot be read. The sandbox notices that the request is incomplete."""
        self._abandon()
        if self.status:
            self._break_off()
        else:
            self._reject(rejection)

    def upgrade_requested(self, rest: bytes) -> None:
        """The request asks for another protocol; ``rest`` arrived behind it."""
        self.is_received = True
        self._after_upgrade = rest
        if rest:
            self.keep = False  # if the sandbox declines, the bytes are neither HTTP nor the other protocol
        self.downstream.transport.pause_reading()

    def _forward_at_once(self) -> bool:
        """Forward the request without a task if it is authorized and an idle connection exists, as for most
        requests."""
        downstream = self.downstream
        router = downstream.router
        if self.headers.url_label:
            entrance = router.entrance(self.method, self.target, self.headers)
            if entrance is not None:
                self._respond(entrance + self._connection_line(self.keep) + b"\r\n", 303)
                return True
        destination = router.destination(self.method, self.target, self.headers, downstream.peer)
        if destination is None:
            self._respond(json_response(200, b'{"status":"ok"}', connection=self._connection_line(self.keep)), 200)
            return True
        if router.authorize(self.headers, destination, downstream.peer) is not None:
            return False
        try:
            target = router.targets.find(destination)
        except RequestRejected as rejection:
            if router.may_be_stale(rejection):
                return False
            router.metrics.decided(True)
            raise
        self._resolved(target, destination)
        upstream = router.upstreams.acquire_idle(target, destination.port, repeatable=self._is_repeatable)
        if upstream is None:
            return False
        self._forward(upstream, f"{target.address}:{destination.port}")
        return True

    async def _connect(self) -> None:
        router, peer = self.downstream.router, self.downstream.peer
        try:
            destination = router.destination(self.method, self.target, self.headers, peer)
            assert destination is not None, "requests for the router itself are answered at once"
            pending = router.authorize(self.headers, destination, peer)
            if pending is not None:
                await pending
            try:
                target = await router.find_current(destination)
            except RequestRejected:
                if self.deadline is None:
                    router.metrics.decided(True)
                raise
            self._resolved(target, destination)
            try:
                upstream = await router.connect(destination, target, repeatable=self._is_repeatable)
            except OSError as error:
                router.metrics.failed(error, self._namespace)
                raise RequestRejected(502, _unreachable(destination, error)) from error
            self._forward(upstream, f"{target.address}:{destination.port}")
        except RequestRejected as rejection:
            self._reject(rejection)

    def _resolved(self, target: Target, destination: Destination) -> None:
        """Count the authorized request and start the deadline of its response, unless this is another attempt."""
        self._namespace = target.namespace
        if self.deadline is None:
            self.downstream.router.metrics.decided(True, self._namespace)
            self.deadline = self.downstream.answer_within(destination.timeout)

    @property
    def _is_repeatable(self) -> bool:
        """Whether the request may be sent again if a reused connection turns out to be dead. Bodies are not kept."""
        return self.method in _SAFE_METHODS and not self.headers.upgrade and not self.headers.has_body

    def _forward(self, upstream: Upstream, host: str) -> None:
        downstream, headers = self.downstream, self.headers
        if self._is_done:
            downstream.router.upstreams.release(upstream)
            return
        self._upstream = upstream
        upstream.begin(self, head_only=self.method == b"HEAD", upgrade_requested=bool(headers.upgrade))
        if not downstream.is_writable:
            self.client_writable(False)
        target = without_token(self.target) if headers.url_label else self.target
        head = headers.head(self.method, target, host=host, client=downstream.peer.address)
        if len(self._early) == 1 and not headers.framing.is_chunked:
            head += self._early.pop()  # one write instead of two wakes the process in the sandbox once
        upstream.write(head)
        if headers.expects_continue:
            downstream.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        for data in self._early:
            upstream.write(chunk(data) if headers.framing.is_chunked else data)
        if self.is_received and headers.framing.is_chunked:
            upstream.write(LAST_CHUNK)
        if self._early_size > _MAX_EARLY_BYTES:
            downstream.transport.resume_reading()
        self._early.clear()

    # --- the response, called by the upstream ------------------------------------------------------------------------

    def response_began(self, head: ResponseHead, headers: ResponseHeaders) -> None:
        self.status = head.status
        if head.status == 101:
            self._switch(headers)
            return
        framing = b""
        if head.framing.length is not None and head.status != 204:
            framing = content_length(head.framing.length)
        elif self.method != b"HEAD" and head.status not in (204, 304):
            if self.headers.is_http_1_0:
                self._until_close, self.keep = True, False
            else:
                self._chunked_out = True
                framing = CHUNKED
        line = self._connection_line(self.keep)
        self._out.append(headers.head(head.status, head.reason, framing=framing, connection=line))

    def response_data(self, data: bytes) -> None:
        self.sent += len(data)
        self._out.append(chunk(data) if self._chunked_out else data)

    def response_flush(self) -> None:
        # One write for a head with its body: a system call costs more than joining them.
        if self._out and not self._is_done:
            self.downstream.transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    def response_ended(self) -> None:
        if self._chunked_out:
            self._out.append(LAST_CHUNK)
        self.response_flush()
        upstream, self._upstream = self._upstream, None
        if upstream is not None and self.is_received:
            self.downstream.router.upstreams.release(upstream)
        elif upstream is not None:
            upstream.close()  # the sandbox waits for the rest of this request and would take the next one for it
        self._finish(keep=self.keep)

    def response_raw(self, data: bytes) -> None:
        self.sent += len(data)
        self.downstream.transport.write(data)

    def response_malformed(self, error: MalformedMessage) -> None:
        self._upstream = None
        self._out.clear()
        self.downstream.router.metrics.failed(error, self._namespace)
        if self.status:
            self._break_off()
        else:
            self.keep = False
            self._reject(RequestRejected(502, f"The sandbox sent a malformed response: {error}."))

    def response_lost(self, error: Exception | None) -> None:
        upstream, self._upstream = self._upstream, None
        if self.status:
            self.response_flush()
            self._break_off()
        elif upstream is not None and not upstream.is_fresh and self._is_repeatable and not self._is_done:
            self._task = asyncio.create_task(self._connect())
        else:
            self.downstream.router.metrics.failed(error or EOFError(), self._namespace)
            self._reject(RequestRejected(502, "The sandbox closed the connection without a response."))

    def upstream_writable(self, writable: bool) -> None:
        transport = self.downstream.transport
        (transport.resume_reading if writable else transport.pause_reading)()

    # --- another protocol, after a 101 -------------------------------------------------------------------------------

    def _switch(self, headers: ResponseHeaders) -> None:
        self.deadline = None
        self.keep = False
        self.downstream.transport.write(headers.switching_head(self.headers.upgrade))
        self.downstream.switched()
        if self._after_upgrade and self._upstream is not None:
            self._upstream.write(self._after_upgrade)
        self.downstream.transport.resume_reading()

    def forward_raw(self, data: bytes) -> None:
        if self._upstream is not None:
            self._upstream.write(data)

    # --- the client --------------------------------------------------------------------------------------------------

    def client_writable(self, writable: bool) -> None:
        if self._upstream is not None:
            transport = self._upstream.transport
            (transport.resume_reading if writable else transport.pause_reading)()

    def client_gone(self) -> None:
        """End the exchange without a response. The sandbox notices by the end of its connection."""
        self._end()
        self._abandon()

    # --- ends --------------------------------------------------------------------------------------------------------

    def timed_out(self) -> None:
        self._abandon()
        self.downstream.router.metrics.failed(TimeoutError(), self._namespace)
        if self.status:
            self._break_off()
        else:
            self._reject(RequestRejected(504, "The sandbox did not answer in time."))

    def _abandon(self) -> None:
        """Stop connecting, or close the connection to the sandbox."""
        if self._task is not None:
            self._task.cancel()
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    def _reject(self, rejection: RequestRejected) -> None:
        keep = self.keep and self.is_received
        line = self._connection_line(keep)
        self._respond(error_response(rejection.status, rejection.detail, connection=line), rejection.status, keep=keep)

    def _respond(self, data: bytes, status: int, *, keep: bool | None = None) -> None:
        """Send a response of the router itself."""
        if not self._is_done:
            self.status = status
            self.downstream.transport.write(without_body(data) if self.method == b"HEAD" else data)
            self._finish(keep=self.keep if keep is None else keep)

    def _connection_line(self, keep: bool) -> bytes:
        return connection_line(keep=keep, is_http_1_0=self.headers.is_http_1_0)

    def _break_off(self) -> None:
        """Close the connection of the client in the middle of a response. Where the end of the connection would mean
        the end of the response, reset it."""
        if self._until_close:
            self.downstream.reset()
        self._finish(keep=False)

    def _finish(self, *, keep: bool) -> None:
        if self._is_done:
            return
        self._end()
        router = self.downstream.router
        router.metrics.answered(self.method, self.status, router.clock.monotonic() - self._started, self._namespace)
        self.downstream.finished(keep=keep)

    def _end(self) -> None:
        if not self._is_done:
            self._is_done = True
            self.downstream.router.metrics.inflight -= 1


def _unreachable(destination: Destination, error: OSError) -> str:
    """Say why a sandbox cannot be reached and, if nothing listens there, what to do."""
    text = f"Could not connect to the backend sandbox: {destination.sandbox}"
    if not isinstance(error, ConnectionRefusedError):
        return text
    port = destination.port
    return (
        f"{text}. Nothing in it listens on port {port}: start a server there that binds to 0.0.0.0, or name its port "
        f"in the header X-Sandbox-Port. Commands and files are served on port 8888 unless the pod template has the "
        f'annotation {INJECT_RUNTIME}: "false".'
    )
