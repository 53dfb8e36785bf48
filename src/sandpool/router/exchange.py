"""One request and its answer, from the client's connection to a sandbox's and back.

Bytes go through as they come, in both directions, and whoever reads slowly slows down whoever writes. Nothing is kept
but the heads, and of a body only what has arrived before the sandbox was connected.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.headers import (
    CHUNKED,
    LAST_CHUNK,
    RequestHeaders,
    ResponseHeaders,
    answer,
    chunk,
    connection,
    length,
    plain,
    switching_head,
    without_body,
)
from sandpool.router.targets import Target
from sandpool.router.upstream import Upstream

if TYPE_CHECKING:
    from sandpool.router.downstream import Downstream

# Of a body that arrives while the sandbox is being connected; then nothing more is read.
_ENOUGH: Final = 1 << 18


class Exchange:
    """One request and its answer."""

    def __init__(
        self, down: Downstream, method: bytes, target: bytes, headers: RequestHeaders, client: str, *, keep: bool
    ) -> None:
        self.down = down
        self.method = method
        self.target = target
        self.headers = headers
        self.client = client
        # Of chunks in HTTP/1.0 nobody knows who on the way has understood them.
        self.keep = keep and not (headers.old and headers.is_chunked)
        self.is_received = False  # the whole request
        self.has_begun = False
        self.deadline: float | None = None  # in the time of the event loop; then the answer must have come
        self.status = 0  # of the answer, once it has begun
        self.sent = 0  # bytes of the answer's body
        self._rest = b""  # what came behind a request for another protocol
        self._early: list[bytes] = []  # of the body, before there was somebody to give it to
        self._early_size = 0
        self._up: Upstream | None = None
        self._chunked_out = False
        self._until_close = False  # the answer ends with the connection
        self._out: list[bytes] = []  # of the answer, to be written together
        self._task: asyncio.Task[None] | None = None
        self._done = False
        self._namespace = ""  # of the sandbox that was found
        self._started = self.down.router.clock.monotonic()

    def begin(self) -> None:
        """Pass it on; at once, if there is nothing to wait for."""
        if self._done or self.has_begun:
            return
        self.has_begun = True
        try:
            if not self._pass_on_at_once():
                self._task = asyncio.create_task(self._connect())
        except RequestRejected as refusal:
            self._refuse(refusal)

    # --- the request -------------------------------------------------------------------------------------------------

    def body(self, data: bytes) -> None:
        if self._done:
            return
        if self._up is None:
            self._early.append(data)
            self._early_size += len(data)
            if self._early_size > _ENOUGH:
                self.down.transport.pause_reading()
        else:
            self._up.write(chunk(data) if self.headers.is_chunked else data)

    def body_ended(self) -> None:
        self.is_received = True
        if self._up is not None and self.headers.is_chunked and not self._done:
            self._up.write(LAST_CHUNK)

    def upgrade_offered(self, rest: bytes) -> None:
        self.is_received = True
        self._rest = rest
        if rest or self.headers.old:
            self.keep = False  # should the sandbox decline, nobody knows where in it the next request begins
        self.down.transport.pause_reading()

    def _pass_on_at_once(self) -> bool:
        """If everybody may pass and a connection waits, as for most requests."""
        router = self.down.router
        wanted = router.wanted(self.method, self.target, self.headers)
        if wanted is None:
            self._own_answer(plain(200, b'{"status":"ok"}', connection=self._connection(self.keep)), 200)
            return True
        if not router.is_open:
            return False
        found = self._found(wanted)
        up = router.upstreams.idle(found, wanted.port, repeatable=self._is_repeatable)
        if up is None:
            return False
        self._pass_on(up, f"{found.address}:{wanted.port}")
        return True

    async def _connect(self) -> None:
        router = self.down.router
        try:
            wanted = router.wanted(self.method, self.target, self.headers)
            assert wanted is not None, "what is for the router itself was answered at once"
            await router.check(self.headers, wanted)
            found = self._found(wanted)
            try:
                up = await router.reach(wanted, found, repeatable=self._is_repeatable)
            except OSError as error:
                router.metrics.failed(error)
                raise RequestRejected(502, f"Could not connect to the backend sandbox: {wanted.sandbox}") from error
            self._pass_on(up, f"{found.address}:{wanted.port}")
        except RequestRejected as refusal:
            self._refuse(refusal)

    def _found(self, wanted: Destination) -> Target:
        """Where it goes, from now on with a deadline. Raises ``RequestRejected``."""
        router = self.down.router
        if self.deadline is None:
            router.metrics.decided(True)
        found = router.targets.find(wanted)
        self._namespace = found.namespace
        if self.deadline is None:
            self.deadline = self.down.answer_within(wanted.timeout)
        return found

    @property
    def _is_repeatable(self) -> bool:
        """A used connection may turn out to be dead, and then the request is sent again, which not every one may be.
        Nor can be one with a body, for we do not keep it."""
        harmless = self.method in (b"GET", b"HEAD", b"OPTIONS")
        return harmless and not self.headers.upgrade and not self.headers.framing

    def _pass_on(self, up: Upstream, host: str) -> None:
        if self._done:
            self.down.router.upstreams.give_back(up)
            return
        self._up = up
        up.begin(self, head_only=self.method == b"HEAD")
        if not self.down.has_room:
            self.client_room(False)
        head = self.headers.head(self.method, self.target, host=host, client=self.client)
        if len(self._early) == 1 and not self.headers.is_chunked:
            head += self._early.pop()  # a second write would be a second wake-up of the sandbox
        up.write(head)
        if not self.headers.old and self.headers.text.get("expect", "").lower() == "100-continue":
            self.down.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        for data in self._early:
            up.write(chunk(data) if self.headers.is_chunked else data)
        if self.is_received and self.headers.is_chunked:
            up.write(LAST_CHUNK)
        if self._early_size > _ENOUGH:
            self.down.transport.resume_reading()
        self._early.clear()

    # --- the answer --------------------------------------------------------------------------------------------------

    def answer_began(self, status: int, reason: bytes, headers: ResponseHeaders) -> None:
        if status == 101 and not self.headers.upgrade:
            self._decline()
            return
        self.status = status
        if status == 101:
            self._switch(headers)
            return
        framing = b""
        if headers.size is not None:
            framing = length(headers.size)
        elif self.method != b"HEAD" and status not in (204, 304):
            if self.headers.old:
                self._until_close, self.keep = True, False
            else:
                self._chunked_out = True
                framing = CHUNKED
        self._out.append(headers.head(status, reason, framing=framing, connection=self._connection(self.keep)))

    def answer_data(self, data: bytes) -> None:
        self.sent += len(data)
        self._out.append(chunk(data) if self._chunked_out else data)

    def answer_paused(self) -> None:
        # What has come at once goes at once: mostly a head with all of its body, and a system call costs more than
        # putting them together.
        if self._out and not self._done:
            self.down.transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    def answer_ended(self) -> None:
        if self._chunked_out:
            self._out.append(LAST_CHUNK)
        self.answer_paused()
        up, self._up = self._up, None
        if up is not None and self.is_received:
            self.down.router.upstreams.give_back(up)
        elif up is not None:
            up.close()  # the sandbox waits for the rest of this request, and would take the next one for it
        self._finish(keep=self.keep)

    def answer_raw(self, data: bytes) -> None:
        self.sent += len(data)
        self.down.transport.write(data)

    def answer_lost(self, error: Exception | None) -> None:
        up, self._up = self._up, None
        if self.status:
            self.answer_paused()
            self._break_off()
        elif up is not None and not up.is_fresh and self._is_repeatable and not self._done:
            self._task = asyncio.create_task(self._connect())
        else:
            self.down.router.metrics.failed(error or EOFError())
            self._refuse(RequestRejected(502, "The sandbox has ended the connection without an answer."))

    def answer_room(self, has_room: bool) -> None:
        (self.down.transport.resume_reading if has_room else self.down.transport.pause_reading)()

    # --- after the agreement to speak something else -----------------------------------------------------------------

    def _decline(self) -> None:
        """Nobody has asked for it, so what comes next from the client are requests: not necessarily to this sandbox,
        and with what is for us to know."""
        if self._up is not None:
            self._up.close()
            self._up = None
        self._refuse(RequestRejected(502, "The sandbox has answered what was not asked."))

    def _switch(self, headers: ResponseHeaders) -> None:
        self.deadline = None
        self.keep = False  # the end of this is the end of the connection
        self.down.transport.write(switching_head(headers, self.headers.upgrade))
        self.down.switched()
        if self._rest and self._up is not None:
            self._up.write(self._rest)
        self.down.transport.resume_reading()

    def raw(self, data: bytes) -> None:
        if self._up is not None:
            self._up.write(data)

    # --- the client --------------------------------------------------------------------------------------------------

    def client_room(self, has_room: bool) -> None:
        if self._up is not None:
            (self._up.transport.resume_reading if has_room else self._up.transport.pause_reading)()

    def client_gone(self) -> None:
        """Nobody waits for the answer: the sandbox is told by the end of its connection."""
        self._done = True
        if self._task is not None:
            self._task.cancel()
        if self._up is not None:
            self._up.close()
            self._up = None

    # --- ends --------------------------------------------------------------------------------------------------------

    def too_late(self) -> None:
        """The deadline has passed."""
        if self._task is not None:
            self._task.cancel()
        if self._up is not None:
            self._up.close()
            self._up = None
        self.down.router.metrics.failed(TimeoutError())
        if self.status:
            self._break_off()
        else:
            self._refuse(RequestRejected(504, "The sandbox did not answer in time."))

    def _refuse(self, refusal: RequestRejected) -> None:
        # What is still coming of the request is for nobody.
        keep = self.keep and self.is_received
        data = answer(refusal.status, refusal.detail, connection=self._connection(keep))
        self._own_answer(data, refusal.status, keep=keep)

    def _own_answer(self, data: bytes, status: int, *, keep: bool | None = None) -> None:
        if not self._done:
            self.status = status
            self.down.transport.write(without_body(data) if self.method == b"HEAD" else data)
            self._finish(keep=self.keep if keep is None else keep)

    def _connection(self, keep: bool) -> bytes:
        return connection(keep=keep, old=self.headers.old)

    def _break_off(self) -> None:
        """Half an answer is with the client; only the end of the connection tells, and where that is how an answer
        ends, a connection that fails."""
        if self._until_close:
            self.down.reset()
        self._finish(keep=False)

    def _finish(self, *, keep: bool) -> None:
        if self._done:
            return
        self._done = True
        router = self.down.router
        router.metrics.answered(self.method, self.status, router.clock.monotonic() - self._started, self._namespace)
        self.down.finished(keep=keep)
