"""The API client of all components: get, list, watch, create, patch and delete.

There is no update. A writer never sends a whole object back, so it cannot drop fields that it does not know, and two
writers conflict only on the fields that both set. Other requests can be sent through ``transport``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.errors import InvalidName
from sandpool.kube.transport import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    Request,
    Target,
    Transport,
    WatchEvent,
    stores_metadata_with_status,
)


@dataclass(frozen=True, slots=True)
class MergePatch:
    """RFC 7386: objects merge, null removes, everything else replaces."""

    content_type: ClassVar[str] = MERGE_PATCH
    body: Object


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """RFC 6902: operations in order, all or none."""

    content_type: ClassVar[str] = JSON_PATCH
    body: Sequence[Object]


@dataclass(frozen=True, slots=True)
class StrategicPatch:
    """A merge patch that merges lists by key. Only built-in kinds support it."""

    content_type: ClassVar[str] = STRATEGIC_MERGE_PATCH
    body: Object


@dataclass(frozen=True, slots=True)
class ApplyPatch:
    """Server-side apply: the fields this manager owns, with apiVersion and kind. Creates a missing object."""

    content_type: ClassVar[str] = APPLY_PATCH
    body: Object


Patch = MergePatch | JsonPatch | StrategicPatch | ApplyPatch


class Client:
    """Typed requests on any transport.

    ``namespace`` may be None for cluster-scoped types and, in ``list`` and ``watch``, for all namespaces. Every method
    raises ``ApiError`` for an error response, ``ConnectionError`` or ``TimeoutError`` if there is no response.
    """

    def __init__(self, transport: Transport, *, field_manager: str = "sandpool") -> None:
        self.transport = transport
        self.field_manager = field_manager
        #: Whether ``patch`` may change the metadata together with the status.
        self.stores_metadata_with_status = stores_metadata_with_status(transport)

    async def get(
        self,
        type: ResourceType,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        resource_version: str | None = None,
    ) -> SharedObject:
        """Return one object, or a subresource of it."""
        query = _query(resourceVersion=resource_version)
        return await self._send(Request("GET", _path(type, namespace, name, subresource), query))

    async def list(
        self,
        type: ResourceType,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int | None = None,
        continue_token: str | None = None,
        resource_version: str | None = None,
        resource_version_match: str | None = None,
    ) -> SharedObject:
        """Return the List object. Its metadata has the resourceVersion to watch from and, if ``limit`` truncated the
        list, the ``continue`` token of the next page."""
        query = _query(
            labelSelector=label_selector,
            fieldSelector=field_selector,
            limit=limit,
            **{"continue": continue_token},
            resourceVersion=resource_version,
            resourceVersionMatch=resource_version_match,
        )
        return await self._send(Request("GET", type.path(namespace), query))

    def watch(
        self,
        type: ResourceType,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str | None = None,
        resource_version_match: str | None = None,
        allow_bookmarks: bool = True,
        send_initial_events: bool = False,
        timeout_seconds: int | None = None,
    ) -> AsyncIterator[WatchEvent]:
        """Stream watch events. The server ends the stream from time to time; resume from the last resourceVersion.
        ``Expired`` means that the resourceVersion is too old: list again."""
        if send_initial_events and resource_version_match is None:
            resource_version_match = "NotOlderThan"  # the only value the API accepts with sendInitialEvents
        query = _query(
            watch=True,
            labelSelector=label_selector,
            fieldSelector=field_selector,
            resourceVersion=resource_version,
            resourceVersionMatch=resource_version_match,
            allowWatchBookmarks=allow_bookmarks,
            sendInitialEvents=send_initial_events,
            timeoutSeconds=timeout_seconds,
        )
        return self.transport.stream(Request("GET", type.path(namespace), query))

    async def create(
        self,
        type: ResourceType,
        object: Object,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: str | None = None,
    ) -> SharedObject:
        """Create ``object`` in ``namespace``, by default its own. ``name`` and ``subresource`` address subresources
        that are created, such as the token of a service account."""
        if namespace is None:
            namespace = object.get("metadata", {}).get("namespace")
        query = _query(
            dryRun="All" if dry_run else None,
            fieldManager=field_manager or self.field_manager,
            fieldValidation=field_validation,
        )
        path = type.path(namespace, name, subresource)
        request = Request("POST", path, query, object)
        request.target = Target(path, type, namespace or "", name or "", subresource or "")
        answer: SharedObject = await self.transport.request(request)
        return answer

    async def patch(
        self,
        type: ResourceType,
        name: str,
        patch: Patch,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        force: bool = False,
        field_validation: str | None = None,
        with_metadata: bool = False,
    ) -> SharedObject:
        """Patch an object. With a ``metadata.resourceVersion`` in the patch, any other version raises ``Conflict``.
        ``force`` takes over fields that other managers applied. ``with_metadata`` lets a patch of the status change
        labels and annotations in the same write; set it only if ``stores_metadata_with_status``, because other
        servers ignore the metadata."""
        query = _query(
            dryRun="All" if dry_run else None,
            fieldManager=field_manager or self.field_manager,
            force=force,
            fieldValidation=field_validation,
        )
        path = _path(type, namespace, name, subresource)
        request = Request("PATCH", path, query, patch.body, patch.content_type, with_metadata)
        request.target = Target(path, type, namespace or "", name, subresource or "")
        answer: SharedObject = await self.transport.request(request)
        return answer

    async def delete(
        self,
        type: ResourceType,
        name: str,
        namespace: str | None = None,
        *,
        propagation_policy: str | None = None,
        grace_period_seconds: int | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
    ) -> SharedObject:
        """Delete an object; ``uid`` and ``resource_version`` are preconditions. Returns the object while finalizers or
        its grace period keep it, else a Status."""
        preconditions = _present(uid=uid, resourceVersion=resource_version)
        options = _present(
            propagationPolicy=propagation_policy,
            gracePeriodSeconds=grace_period_seconds,
            preconditions=preconditions or None,
            dryRun=["All"] if dry_run else None,
        )
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options} if options else None
        return await self._send(Request("DELETE", _path(type, namespace, name), body=body))

    async def close(self) -> None:
        """Close the transport."""
        await self.transport.close()

    async def _send(self, request: Request) -> SharedObject:
        response: Object = await self.transport.request(request)
        return response


def _path(type: ResourceType, namespace: str | None, name: str, subresource: str | None = None) -> str:
    """The path of one object. Rejects an empty name: it addresses the collection, which DELETE would empty."""
    if name in ("", ".", ".."):
        raise InvalidName(f"{name!r} is not the name of an object")
    if type.namespaced and not namespace:
        raise InvalidName(f"{type} are namespaced: {name!r} needs a namespace")
    return type.path(namespace, name, subresource)


def _present(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _query(**parameters: str | int | bool | None) -> dict[str, str]:
    """Query parameters for the API. Omits None, false and empty values."""
    return {
        name: "true" if value is True else str(value)
        for name, value in parameters.items()
        if value is not None and value is not False and value != ""
    }
