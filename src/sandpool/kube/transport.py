"""The seam between clients and a Kubernetes API.

A transport carries one request and gives one answer. There are three: HTTP to any Kubernetes API (``kube.http``),
in-process to the embedded server (``server.inprocess``), and the simulated world of the tests. No caller can tell
which one it got.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandpool.api.resource import Object

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(slots=True)
class Request:
    """One API request. ``path`` is percent-encoded and has no query; ``query`` values are plain text."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    # A JSON value (dict or list), or bytes to be sent as they are with ``content_type``. None: no body.
    body: Any = None
    content_type: str = JSON


@dataclass(slots=True, frozen=True)
class WatchEvent:
    """One line of a watch stream. ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; ERROR is raised as ApiError."""

    type: str
    object: Object


class Transport(Protocol):
    async def request(self, request: Request) -> Any:
        """Send and return the decoded JSON answer. Raises ``ApiError`` for every Status answer of 400 or more, and
        ``ConnectionError``/``TimeoutError`` when there was no answer at all."""
        ...

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        """Open a watch. The iterator ends when the server ends the stream, and raises ``ApiError`` if the request is
        refused or an ERROR event arrives. Closing the iterator (``aclose``) releases the connection."""
        ...

    async def close(self) -> None:
        """Release every connection; open streams end."""
        ...
