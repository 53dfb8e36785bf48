"""Who we are to an API server: a token, a token file that rotates, a password, or nobody.

Credentials are asked before every request, because they change: a kubelet replaces token files, a plugin's tokens
expire. Exec plugins are in ``kube.execplugin``.
"""

from __future__ import annotations

import base64
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class CredentialsError(ConnectionError):
    """Credentials could not be had, so nothing was sent. The message says what to do about it."""


@dataclass(frozen=True, slots=True)
class RequestAuth:
    """What goes with one request: a header, and a TLS context where the client certificate is not the usual one."""

    # Kept out of reprs, which end up in logs.
    authorization: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


class Credentials(Protocol):
    async def auth(self) -> RequestAuth:
        """What to send with the next request. Raises ``CredentialsError``."""
        ...

    async def renew(self, refused: RequestAuth) -> bool:
        """The server answered 401 to ``refused``: get something else. False if there is nothing else to be had."""
        ...


class Fixed:
    """The same for ever: nothing at all, a token or a password. A client certificate is in the TLS context."""

    def __init__(self, authorization: str | None = None) -> None:
        self._auth = RequestAuth(authorization)

    @classmethod
    def token(cls, token: str) -> Fixed:
        return cls(f"Bearer {token}")

    @classmethod
    def password(cls, username: str, password: str) -> Fixed:
        return cls("Basic " + base64.b64encode(f"{username}:{password}".encode()).decode())

    async def auth(self) -> RequestAuth:
        return self._auth

    async def renew(self, refused: RequestAuth) -> bool:
        return False


ANONYMOUS = Fixed()


class TokenFile:
    """A token in a file that somebody else replaces, as the kubelet does with service account tokens.

    Every request looks whether the file is still the one that was read; that is one ``stat``, and no token is used a
    moment longer than necessary. While the file is missing or empty the last token goes on being used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._read: tuple[int, int, int] | None = None  # what identified the file when it was read
        self._auth: RequestAuth | None = None

    async def auth(self) -> RequestAuth:
        try:
            found = self.path.stat()
            if (identity := (found.st_ino, found.st_mtime_ns, found.st_size)) != self._read:
                self._load()
                self._read = identity
        except (OSError, ValueError) as error:
            if self._auth is None:
                raise CredentialsError(f"cannot read the token file {self.path}: {error}") from error
        assert self._auth is not None
        return self._auth

    async def renew(self, refused: RequestAuth) -> bool:
        self._read = None
        return await self.auth() != refused

    def _load(self) -> None:
        token = self.path.read_text().strip()
        if not token:
            raise ValueError("it is empty")
        self._auth = RequestAuth(f"Bearer {token}")
