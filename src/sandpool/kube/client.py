"""The client every part of the system talks through: get, list, watch, create, patch, delete, and nothing more.

There is no update: a whole object is never sent back, so a writer that sees only part of an object loses nothing and
two writers collide only where they mean to. Whoever truly needs another request sends it through ``transport``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sandpool.api.resource import Object, ResourceType
from sandpool.kube.transport import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    Request,
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
    """A merge patch that merges lists by key; only built-in kinds have it."""

    content_type: ClassVar[str] = STRATEGIC_MERGE_PATCH
    body: Object


@dataclass(frozen=True, slots=True)
class ApplyPatch:
    """Server-side apply: the fields this manager wants, with apiVersion and kind. Creates what does not exist."""

    content_type: ClassVar[str] = APPLY_PATCH
    body: Object


Patch = MergePatch | JsonPatch | StrategicPatch | ApplyPatch


class Client:
    """Typed requests on any transport.

    ``namespace`` may be None for cluster-scoped types and, in ``list`` and ``watch``, for all namespaces. Every method
    raises ``ApiError`` when the server says no, ``ConnectionError`` or ``TimeoutError`` when it says nothing.
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
    ) -> Object:
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
    ) -> Object:
        """The List object: ``items``, and in its metadata the resourceVersion to watch from and, when ``limit`` cut
        it short, the ``continue`` token for the rest."""
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
        """Events as they happen. The server ends the stream from time to time: watch again from the last
        resourceVersion seen. ``Expired`` means that is too old: list again."""
        if send_initial_events and resource_version_match is None:
            resource_version_match = "NotOlderThan"  # the only value the API accepts with it
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
    ) -> Object:
        """Create ``object``, in its own namespace unless another is given. ``name`` and ``subresource`` are for
        subresources that are created, such as a token of a service account."""
        if namespace is None:
            namespace = object.get("metadata", {}).get("namespace")
        query = _query(
            dryRun="All" if dry_run else None,
            fieldManager=field_manager or self.field_manager,
            fieldValidation=field_validation,
        )
        return await self._send(Request("POST", type.path(namespace, name, subresource), query, object))

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
    ) -> Object:
        """Change what the patch names and nothing else. A ``metadata.resourceVersion`` in the patch makes it apply
        only to that version of the object, ``Conflict`` otherwise. ``force`` takes fields from other appliers.
        ``with_metadata``: a patch of the status may change labels and annotations, too, in the same commit. Only if
        ``stores_metadata_with_status``; other servers ignore the metadata."""
        query = _query(
            dryRun="All" if dry_run else None,
            fieldManager=field_manager or self.field_manager,
            force=force,
            fieldValidation=field_validation,
        )
        path = _path(type, namespace, name, subresource)
        return await self._send(Request("PATCH", path, query, patch.body, patch.content_type, with_metadata))

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
    ) -> Object:
        """Delete, only the object with this ``uid`` or at this ``resource_version`` if given. The answer is the
        object while finalizers or its grace period keep it, and a Status once it is gone."""
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
        await self.transport.close()

    async def _send(self, request: Request) -> Object:
        answer: Object = await self.transport.request(request)
        return answer


def _path(type: ResourceType, namespace: str | None, name: str, subresource: str | None = None) -> str:
    """The path of one object. An empty name would silently mean the whole collection, which DELETE would empty."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of an object")
    if type.namespaced and not namespace:
        raise ValueError(f"{type} are namespaced: {name!r} needs a namespace")
    return type.path(namespace, name, subresource)


def _present(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _query(**parameters: str | int | bool | None) -> dict[str, str]:
    """Query parameters as the API spells them; what is None, false or empty is left out."""
    return {
        name: "true" if value is True else str(value)
        for name, value in parameters.items()
        if value is not None and value is not False and value != ""
    }
