"""The watch verb: changes from a resourceVersion on, in order."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TypeVar

import orjson

from sandpool.api.causes import Cause
from sandpool.api.resource import Object
from sandpool.kube.errors import ApiError, Expired, invalid
from sandpool.server.registry.context import RegistryContext, filled
from sandpool.server.registry.read import LIST_OPTIONS, Selection, parse_version
from sandpool.server.request.messages import WatchLine, WatchStream
from sandpool.server.request.options import WatchOptions
from sandpool.server.resources import Resource
from sandpool.server.store.entry import Change, Entry, Overrun
from sandpool.server.store.history import Compacted
from sandpool.server.store.watch import Subscription, SubscriptionExpired

# Clients reconnect from their last resourceVersion; ending watches after a while spreads reconnects.
_DEFAULT_TIMEOUT = 1800.0
_BOOKMARK_INTERVAL = 60.0
# Objects and changes that are sent before other streams get a turn. Those that must be matched or converted take more.
_CHUNK = 500
_CONVERTED_CHUNK = 50
# Encoded bytes of one batch, unless a single object is larger: a client that does not read holds one batch.
_CHUNK_BYTES = 256 * 1024
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

# Converts an object to the form that a client requested (a Table row, its metadata).
Rendering = Callable[[Object], Object]
T = TypeVar("T")


def watch(
    context: RegistryContext,
    resource: Resource,
    namespace: str | None,
    options: WatchOptions,
    rendering: Rendering | None = None,
) -> WatchStream:
    """Open a watch. Raises for an invalid request. A compacted resourceVersion becomes the first event of the stream,
    where clients expect it."""
    _check(options)
    selection = Selection(context, resource, options.labels, options.fields)
    since: int | None = None
    initial = options.initial_events is True
    if options.resource_version in ("", "0"):
        initial = options.initial_events is not False
    elif not initial:
        since = parse_version(options.resource_version)
    else:
        parse_version(options.resource_version)
    if selection.namespace is not None and namespace is None and resource.type.namespaced:
        namespace = selection.namespace
    stream = _Stream(context, resource, selection, options, rendering)
    try:
        subscription = context.store.watch(resource.storage, namespace, selection.name, since=since)
    except Compacted as error:
        return WatchStream(_refusal(Expired(str(error))), lambda: None)
    # Nothing else runs between subscribing and scanning, so no change is missed or sent twice.
    present = list(context.store.scan(resource.storage, namespace)) if initial else []
    return stream.start(subscription, present, context.store.revision)


def _check(options: WatchOptions) -> None:
    causes = []
    forbidden = "FieldValueForbidden"
    if options.initial_events is not None:
        if options.resource_version_match and options.resource_version_match != "NotOlderThan":
            why = f'Unsupported value: "{options.resource_version_match}": supported values: "NotOlderThan"'
            causes.append(Cause("resourceVersionMatch", "FieldValueNotSupported", why))
        elif not options.resource_version_match:
            why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            causes.append(Cause("resourceVersionMatch", forbidden, why))
    elif options.resource_version_match:
        why = "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes.append(Cause("resourceVersionMatch", forbidden, why))
    if causes:
        raise invalid(LIST_OPTIONS, "", causes)


def _batches(items: list[T], count: int, sizes: list[int]) -> Iterator[list[T]]:
    """Consecutive items, at most ``count`` and ``_CHUNK_BYTES`` in one batch. ``sizes`` has the bytes of each."""
    if len(items) <= count and sum(sizes) <= _CHUNK_BYTES:
        if items:
            yield items
        return
    batch: list[T] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        total += size
        if batch and (len(batch) == count or total > _CHUNK_BYTES):
            yield batch
            batch, total = [], size
        batch.append(item)
    yield batch


async def _refusal(error: ApiError) -> AsyncGenerator[list[WatchLine], None]:
    yield [WatchLine("ERROR", error.status(), orjson.dumps(error.status()))]


class _Stream:
    """The changes as one client sees them."""

    def __init__(
        self,
        context: RegistryContext,
        resource: Resource,
        selection: Selection,
        options: WatchOptions,
        rendering: Rendering | None,
    ) -> None:
        self._context = context
        self._resource = resource
        self._selection = selection
        self._options = options
        self._rendering = rendering
        self._initial = False  # whether initial events are being sent
        self._chunk = _CHUNK if selection.everything and rendering is None else _CONVERTED_CHUNK

    def start(self, subscription: Subscription, present: list[Entry], revision: int) -> WatchStream:
        self._initial = bool(present)
        lines = self._lines(subscription, present, revision)
        return WatchStream(lines, subscription.close, holds_states=lambda: self._initial)

    async def _lines(
        self, subscription: Subscription, present: list[Entry], revision: int
    ) -> AsyncGenerator[list[WatchLine], None]:
        monotonic = self._context.clock.monotonic
        deadline = monotonic() + (self._options.timeout or _DEFAULT_TIMEOUT)
        seen = revision
        try:
            matches = self._selection.matches
            for chunk in _batches(present, self._chunk, [len(entry.encoded) for entry in present]):
                if lines := [self._line("ADDED", entry) for entry in chunk if matches(entry)]:
                    yield lines
            del present
            self._initial = False
            if self._options.initial_events and self._options.bookmarks:
                yield [self._bookmark(revision, initial_events_end=True)]
            while (left := deadline - monotonic()) > 0:
                changes = await subscription.take(min(left, _BOOKMARK_INTERVAL))
                if changes is None:
                    return
                if changes:
                    seen = changes[-1].revision
                    for batch in _batches(changes, self._chunk, [change.size for change in changes]):
                        if lines := self._render(batch):
                            yield lines
                elif self._options.bookmarks:
                    # The subscription is empty, so the client has seen everything up to now.
                    seen = max(seen, self._context.store.revision)
                    yield [self._bookmark(seen)]
        except Overrun:
            return
        except SubscriptionExpired:
            status = Expired("the objects have moved; list them again").status()
            yield [WatchLine("ERROR", status, orjson.dumps(status))]
        finally:
            subscription.close()

    def _render(self, changes: list[Change]) -> list[WatchLine]:
        """Convert changes to events. An object that stops matching the selector is DELETED for this client."""
        if self._selection.everything:
            return [self._change_line(change.type, change) for change in changes]
        matches = self._selection.matches
        lines = []
        for change in changes:
            was = change.previous is not None and matches(change.previous)
            now = change.type != "DELETED" and matches(change.entry)
            if now:
                lines.append(self._change_line("MODIFIED" if was else "ADDED", change))
            elif was:
                lines.append(self._departure(change))
        return lines

    def _change_line(self, type: str, change: Change) -> WatchLine:
        """The line for a change, encoded once for all streams of plain objects."""
        if self._rendering is not None:
            return self._rendered(type, self._read(change.entry))
        key = (type, self._resource)
        line: WatchLine | None = change.renderings.get(key)
        if line is None:
            if self._resource.from_stored is None:
                entry = filled(self._resource, change.entry)
                line = WatchLine(type, entry.kept, entry.encoded)
            else:
                line = self._rendered(type, self._read(change.entry))
            change.renderings[key] = line
        return line

    def _departure(self, change: Change) -> WatchLine:
        """The object as the client last saw it, at the revision of the change that made it stop matching."""
        if change.type == "DELETED" or change.previous is None:
            return self._change_line("DELETED", change)
        last = self._read(change.previous)
        last = {**last, "metadata": {**last["metadata"], "resourceVersion": str(change.revision)}}
        return self._rendered("DELETED", last)

    def _line(self, type: str, entry: Entry) -> WatchLine:
        if self._rendering is None and self._resource.from_stored is None:
            return WatchLine(type, None, filled(self._resource, entry).encoded)
        return self._rendered(type, self._read(entry))

    def _read(self, entry: Entry) -> Object:
        return self._context.read(self._resource, entry)

    def _rendered(self, type: str, obj: Object) -> WatchLine:
        if self._rendering is not None:
            obj = self._rendering(obj)
        return WatchLine(type, obj, orjson.dumps(obj))

    def _bookmark(self, revision: int, *, initial_events_end: bool = False) -> WatchLine:
        metadata: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_events_end:
            metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
        type = self._resource.type
        obj = {"kind": type.kind, "apiVersion": type.api_version, "metadata": metadata}
        if self._rendering is not None:
            obj = self._rendering(obj)
        return WatchLine("BOOKMARK", obj, orjson.dumps(obj))
