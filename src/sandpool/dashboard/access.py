"""Access to the dashboard: by its token, by a one-time code, and then by a session.

The token is in a file that only the owner of a home can read. A one-time code is signed with it, so that the command
line can make one for a running dashboard without talking to it. A code is in the fragment of a URL, which browsers
neither send to servers nor to other pages, and it works once: a URL in the scrollback of a terminal is worth nothing.

A session is a cookie for requests and, beside it, a second secret that only our own pages can read. Every request that
changes something has to carry both: browsers send cookies of 127.0.0.1 to servers on all of its ports, one of which may
be that of a sandbox.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from sandpool.engine.clock import Clock

#: Seconds in which a one-time code can be used.
CODE_SECONDS: Final = 3600
#: Seconds without a request after which a session ends, and seconds after which it ends in any case.
IDLE_SECONDS: Final = 12 * 3600
SESSION_SECONDS: Final = 7 * 24 * 3600
_MAX_SESSIONS: Final = 256
_ID_LETTERS: Final = 12
_PURPOSE: Final = "sandpool dashboard login"
#: Clocks of two processes of one machine do not differ, but a code has full milliseconds.
_ROUNDING_MS: Final = 1


def new_token() -> str:
    """A token of a dashboard."""
    return secrets.token_hex(32)


def one_time_code(token: str, clock: Clock) -> str:
    """A code that logs in once, within an hour."""
    issued = f"{int(clock.now().timestamp() * 1000):x}"
    nonce = secrets.token_hex(8)
    return f"{issued}.{nonce}.{_signature(token, issued, nonce)}"


def login_url(url: str, token: str, clock: Clock) -> str:
    """The address of a dashboard, with a one-time code."""
    return f"{url}/login#{one_time_code(token, clock)}"


def _signature(token: str, issued: str, nonce: str) -> str:
    message = f"{_PURPOSE}\n{issued}.{nonce}".encode()
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


class LoginCheck:
    """Accepts the token, and each one-time code once.

    Which codes were used is remembered by this process. ``not_before`` is when the first process that could have
    accepted codes with this token started serving: an earlier code may have been used with a predecessor."""

    def __init__(self, token: str, clock: Clock, not_before: float = 0.0) -> None:
        self._token = token
        self._clock = clock
        self._not_before = not_before
        self._used: dict[str, float] = {}  # nonce: when its code expires

    def accepts(self, given: str) -> bool:
        """Whether this is the token or an unused code; a code is used up by that."""
        if hmac.compare_digest(given.encode(), self._token.encode()):
            return True
        parts = given.split(".")
        if len(parts) != 3 or not given.isascii():
            return False
        issued, nonce, signature = parts
        if not hmac.compare_digest(signature, _signature(self._token, issued, nonce)):
            return False
        now = self._clock.now().timestamp()
        at = int(issued, 16) / 1000
        self._used = {each: until for each, until in self._used.items() if until > now}
        if nonce in self._used or now >= at + CODE_SECONDS or at + _ROUNDING_MS / 1000 < self._not_before:
            return False
        self._used[nonce] = at + CODE_SECONDS
        return True


@dataclass(slots=True)
class Session:
    """``csrf`` is the secret that pages read and requests carry in a header; ``id`` is in the audit log."""

    id: str
    csrf: str
    begun: float
    seen: float


class Sessions:
    """The browsers that have logged in. They are kept in memory: a restart ends them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}  # by the hash of the cookie

    def begin(self) -> tuple[str, Session]:
        """Begin a session; returns the value of its cookie."""
        now = self._clock.monotonic()
        self._forget(now)
        if len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda each: self._sessions[each].seen)]
        cookie = secrets.token_urlsafe(32)
        hashed = _hashed(cookie)
        made = self._sessions[hashed] = Session(hashed[:_ID_LETTERS], secrets.token_urlsafe(32), now, now)
        return cookie, made

    def find(self, cookie: str) -> Session | None:
        """The session of a cookie, which is thereby in use."""
        found = self._sessions.get(_hashed(cookie))
        now = self._clock.monotonic()
        if found is None or _is_over(found, now):
            return None
        found.seen = now
        return found

    def end(self, cookie: str) -> None:
        self._sessions.pop(_hashed(cookie), None)

    def __len__(self) -> int:
        return len(self._sessions)

    def _forget(self, now: float) -> None:
        self._sessions = {each: one for each, one in self._sessions.items() if not _is_over(one, now)}


def _is_over(session: Session, now: float) -> bool:
    return now - session.seen >= IDLE_SECONDS or now - session.begun >= SESSION_SECONDS


def _hashed(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()
