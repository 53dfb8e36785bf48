"""The state of one request on a connection."""

from __future__ import annotations

from sandpool.kube.errors import ApiError
from sandpool.server.http.fairness import Flow
from sandpool.server.request.messages import Response, ServerRequest, User

UNAUTHENTICATED = User("")


class RequestCycle:
    """The request for the handler, and what the connection needs to send the response."""

    __slots__ = (
        "audit_id",
        "buffered",
        "caller",
        "error",
        "flow",
        "keep_alive",
        "legacy",
        "request",
        "response",
        "sent",
        "started",
        "streaming",
        "superseded",
    )

    def __init__(self, request: ServerRequest, audit_id: str, started: float, keep_alive: bool, legacy: bool) -> None:
        self.request = request
        self.flow: Flow | None = None  # of the caller, once authenticated
        self.buffered = 0  # bytes of the body, counted in the flow
        self.streaming = False  # a watch or an upgraded connection, counted in the flow
        self.caller = UNAUTHENTICATED  # the authenticated user; request.user is the impersonated one
        self.audit_id = audit_id
        self.started = started  # monotonic seconds
        self.keep_alive = keep_alive
        self.legacy = legacy  # HTTP/1.0: no chunked encoding, a stream ends with the connection
        self.superseded = 0  # bytes that the store had replaced when the request was admitted
        self.sent = 0  # bytes of the response body
        self.response: Response | None = None  # for the audit log
        self.error: ApiError | None = None  # refused before it reached the handler
