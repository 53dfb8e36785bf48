"""The interface between clients and a Kubernetes API.

A transport sends one request and returns one response. There are three: HTTP to any Kubernetes API (``kube.http``),
in-process calls of the embedded server (``server.inprocess``), and the simulation of the tests. Callers do not depend
on which one they use.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandpool.api.resource import ResourceType, SharedObject

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(slots=True, frozen=True)
class Target:
    """The object of ``path``, where the sender of a request knows it. It says nothing about any other path."""

    path: str
    type: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(slots=True)
class Request:
    """One API request. ``path`` is percent-encoded and has no query; ``query`` values are plain text."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    # A JSON value (dict or list), or encoded bytes of ``content_type``. None: no body.
    body: Any = None
    content_type: str = JSON
    # A patch of a custom resource's status may change its labels and annotations in the same write. This is not part of
    # the Kubernetes API: only transports with ``stores_metadata_with_status`` support it.
    with_metadata: bool = False
    # Spares a server in the same process from parsing the path. Other transports need not look at it.
    target: Target | None = field(default=None, compare=False)


@dataclass(slots=True, frozen=True)
class WatchEvent:
    """One line of a watch stream. ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; ERROR is raised as ApiError."""

    type: str
    object: SharedObject


def stores_metadata_with_status(transport: object) -> bool:
    """Whether requests of a transport may set ``Request.with_metadata``.

    A transport declares it with an attribute of this name. A wrapper without the attribute inherits it from the
    transport in its ``transport`` attribute.
    """
    while transport is not None:
        found = getattr(transport, "stores_metadata_with_status", None)
        if found is not None:
            return bool(found)
        transport = getattr(transport, "transport", None)
    return False


class Transport(Protocol):
    async def request(self, request: Request) -> Any:
        """Send a request and return the decoded JSON response. Raises ``ApiError`` for every code of 400 or more, and
        ``ConnectionError`` or ``TimeoutError`` if there was no response."""
        ...

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        """Open a watch. The iterator ends when the server ends the stream, and raises ``ApiError`` if the server
        rejects the request or sends an ERROR event. Closing the iterator (``aclose``) releases the connection."""
        ...

    async def close(self) -> None:
        """Release all connections and end open streams."""
        ...
