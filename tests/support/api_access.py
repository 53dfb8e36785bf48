"""Access to one API under test or under load, for several users."""

from __future__ import annotations

import io
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
import orjson
import yarl

from sandpool.kube.client import Client
from sandpool.kube.connection import Connection
from sandpool.kube.credentials import Fixed
from sandpool.kube.http import HttpTransport
from sandpool.kube.retry import Retry
from tests.support.users import ADMIN


class ApiEndpoint(Protocol):
    """An API with some users."""

    name: str

    def client_for(self, user: str) -> Client:
        """Return a client that acts as one of the users of the endpoint."""
        ...

    async def forget_history(self) -> None:
        """Drop the history of watches and continue tokens, as the server would after some time."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class ApiResponse:
    """An HTTP response with everything that a ``Client`` hides: headers, media types, exact bodies."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names
    warnings: tuple[str, ...] = ()  # the Warning headers, of which there may be several

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    def json(self) -> Any:
        return orjson.loads(self.body)

    def lines(self) -> list[Any]:
        """The events of a watch that has ended."""
        return [orjson.loads(line) for line in self.body.splitlines()]


class Raw(Protocol):
    async def __call__(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        user: str | None = ADMIN,
    ) -> ApiResponse:
        """Send exactly this request and return the exact response. ``target`` is the encoded path with its query; a
        user of None sends no credentials."""
        ...


class HttpEndpoint:
    """An API reached over HTTPS with a bearer token for each user."""

    def __init__(self, url: str, ca: str, tokens: Mapping[str, str]) -> None:
        self.url = url
        self.tls = ssl.create_default_context(cadata=ca)
        self.tokens = tokens
        self._clients: dict[str, Client] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.tls),
            timeout=aiohttp.ClientTimeout(total=60),
            auto_decompress=False,
        )

    def client_for(self, user: str) -> Client:
        if user not in self._clients:
            connection = Connection(self.url, self.tls, Fixed.token(self.tokens[user]))
            # Return the first response: tests and measurements must not retry.
            self._clients[user] = Client(HttpTransport(connection, retry=Retry(attempts=1)))
        return self._clients[user]

    async def raw(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        user: str | None = ADMIN,
    ) -> ApiResponse:
        """See ``Raw``."""
        sent = {"Authorization": f"Bearer {self.tokens[user]}"} if user is not None else {}
        async with self._session.request(
            method,
            yarl.URL(self.url + target, encoded=True),
            data=io.BytesIO(body) if body is not None else None,  # bytes of over a megabyte would make it warn
            headers={**sent, **(headers or {})},
            skip_auto_headers=("Content-Type", "Accept", "Accept-Encoding", "User-Agent"),
        ) as answer:
            return ApiResponse(
                answer.status,
                await answer.read(),
                {name.lower(): value for name, value in answer.headers.items()},
                tuple(answer.headers.getall("Warning", [])),
            )

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        await self._session.close()
