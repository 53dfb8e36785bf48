"""Client credentials: a token, a token file that rotates, a password, or anonymous access.

The transport reads the credentials before every request because they change: the kubelet replaces token files, and
tokens of exec plugins expire. Exec plugins are in ``kube.execplugin``.
"""

from __future__ import annotations

import base64
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class CredentialsError(ConnectionError):
    """No credentials are available, so no request was sent. The message names the remedy."""


@dataclass(frozen=True, slots=True)
class RequestAuth:
    """Authentication of one request: the header, and a TLS context that overrides the connection's."""

    # Excluded from repr, which may be logged.
    authorization: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


class Credentials(Protocol):
    async def auth(self) -> RequestAuth:
        """Authentication for the next request. Raises ``CredentialsError``."""
        ...

    async def renew(self, refused: RequestAuth) -> bool:
        """Replace ``refused`` after the server answered 401. Returns False if there is no replacement."""
        ...


class Fixed:
    """Credentials that never change: anonymous, a token or a password. The TLS context has the client certificate."""

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
    """A token in a file that another process replaces, such as the kubelet for service account tokens.

    Every request checks with one ``stat`` whether the file was replaced, so a new token is used at once. While the
    file is missing or empty, the last token stays in use.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._read: tuple[int, int, int] | None = None  # inode, mtime and size of the file that was read
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
