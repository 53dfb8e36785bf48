"""Checks before every page: the names a browser may use, the origins of requests, and sessions.

* **Host** must be a name of this dashboard. A page on the internet can point its own name at 127.0.0.1 (DNS rebinding),
  but it cannot choose the header.
* **Origin** and **Sec-Fetch-Site** must be our own, for requests that change something, for streams and for WebSockets.
* **A session**, and for those requests its second secret in ``X-Sandpool-Session``, or for a WebSocket in its
  subprotocol: a cookie alone is not enough, because it goes to servers on other ports of the same host too.
* **Headers**: a strict policy without inline code, without other hosts, without frames.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from sandpool.dashboard.access import Session, Sessions
from sandpool.kube.connection import is_loopback
from sandpool.kube.user_agent import on_behalf_of_session

SESSION_HEADER: Final = "X-Sandpool-Session"
#: The subprotocol of WebSockets, and the prefix of the one that carries the secret of the session.
PROTOCOL: Final = "sandpool"
SECRET_PROTOCOL: Final = "session."
_READING: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """``hosts`` are names besides those of this machine's loopback interface. ``secure`` marks the cookie for HTTPS."""

    hosts: frozenset[str] = frozenset()
    secure: bool = False
    read_only: bool = False


class Guard:
    """Decides which requests are served."""

    def __init__(self, sessions: Sessions, options: GuardOptions, port: Callable[[], int]) -> None:
        self.sessions = sessions
        self.options = options
        self._port = port
        self._on_session: Callable[[web.Request], None] = lambda request: None

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies do not depend on the port, so the name does."""
        return f"sandpool-dashboard-{self._port()}"

    def begin(self, response: web.StreamResponse) -> None:
        """Begin a session with the browser that receives this response."""
        value, _ = self.sessions.begin()
        secure = self.options.secure
        response.set_cookie(self.cookie, value, path="/", httponly=True, samesite="Strict", secure=secure)

    def end(self, request: web.Request, response: web.StreamResponse) -> None:
        self.sessions.end(request.cookies.get(self.cookie, ""))
        response.del_cookie(self.cookie, path="/")

    def on_session(self, call: Callable[[web.Request], None]) -> None:
        """Have a function called for each request that has a session."""
        self._on_session = call

    def session(self, request: web.Request) -> Session | None:
        """The session of a request."""
        found = self.sessions.find(request.cookies.get(self.cookie, ""))
        if found is not None:
            self._on_session(request)
        return found

    @web.middleware
    async def checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what a page of another origin could have sent; for everything else add the headers."""
        if not self._is_own_host(request.headers.get(hdrs.HOST, "")):
            answer = "this name is not served here; --allowed-host adds one"
            response: web.StreamResponse = refusal(421, "unknown host", answer)
        elif not self._is_own_page(request):
            response = refusal(403, "the request comes from another site")
        else:
            response = await handler(request)
        if not response.prepared:
            self.add_headers(response)
        return response

    def add_headers(self, response: web.StreamResponse) -> None:
        """Add what belongs to every response; a streamed one needs it before it begins."""
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)

    def authorized(self, handler: Handler, *, changes: bool = False) -> Handler:
        """A handler for browsers with a session. All that is not a plain page needs its second secret too; with
        ``changes`` it is refused in read-only mode."""

        async def serve(request: web.Request) -> web.StreamResponse:
            session = self.session(request)
            if session is None:
                return refusal(401, "the session has ended", "Log in again with: sandpool dashboard")
            given = _secret(request).encode(errors="surrogateescape")  # headers are bytes
            if not hmac.compare_digest(given, session.csrf.encode()):
                return refusal(403, "the request does not come from a page of this dashboard", "Reload the page.")
            if changes and self.options.read_only:
                return refusal(403, "this dashboard is read-only")
            with on_behalf_of_session(session.id):
                return await handler(request)

        return serve

    def _is_own_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name.lower() in self.options.hosts

    def _is_own_page(self, request: web.Request) -> bool:
        """Whether one of our pages can have sent the request. Browsers name the sender in two headers that no page can
        set. Plain pages may be asked for from anywhere; what changes something needs the header with the origin."""
        is_reading = request.method in _READING and hdrs.UPGRADE not in request.headers
        if is_reading and not request.path.startswith("/api/"):
            return True
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get(hdrs.ORIGIN)
        scheme = "https" if self.options.secure else "http"
        return is_reading if origin is None else origin == f"{scheme}://{request.headers.get(hdrs.HOST, '')}"


def client_of(request: web.Request) -> object:
    """The address of the client, as the gate knows it."""
    return None if request.transport is None else request.transport.get_extra_info("peername")


def refusal(status: int, error: str, advice: str = "") -> web.Response:
    """An error as the pages expect it."""
    return web.json_response({"error": error, "advice": advice}, status=status)


def _secret(request: web.Request) -> str:
    """The second secret of the session: in a header or, from APIs of browsers that cannot set one, elsewhere."""
    if (given := request.headers.get(SESSION_HEADER)) is not None:
        return given
    for protocol in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(","):
        if protocol.strip().startswith(SECRET_PROTOCOL):
            return protocol.strip().removeprefix(SECRET_PROTOCOL)
    return ""
