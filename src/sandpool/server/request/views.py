"""Renders responses: plain objects, rows of a Table, or metadata only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from sandpool.api.resource import Object
from sandpool.server.registry.context import Outcome, RegistryContext
from sandpool.server.registry.read import Page
from sandpool.server.registry.watch import Rendering
from sandpool.server.request.messages import Response
from sandpool.server.request.negotiation import negotiate
from sandpool.server.resources import Resource
from sandpool.server.store.entry import Entry
from sandpool.server.tables import check_include_object, transform_event, transform_response

# Larger lists are not joined: a slow client would hold a copy.
_JOIN_BELOW = 256 * 1024


class View:
    """The negotiated form of one response."""

    def __init__(
        self,
        context: RegistryContext,
        resource: Resource,
        headers: Mapping[str, str],
        query: Mapping[str, str],
        *,
        stream: bool = False,
    ) -> None:
        self._context = context
        self._resource = resource
        self._form = negotiate(headers.get("accept", ""), custom=resource.custom, stream=stream)
        self._include = query.get("includeObject", "")
        if self._form.as_:
            check_include_object(self._include)

    def stored(self, entry: Entry) -> Response:
        """One stored object; its bytes are sent unchanged where possible."""
        if not self._form.as_ and self._resource.from_stored is None:
            return Response(encoded=entry.encoded)
        return Response(object=self._shown(self._context.read(self._resource, entry)))

    def outcome(self, outcome: Outcome, status: int = 200) -> Response:
        """The response to a write."""
        headers = [warning(text) for text in outcome.warnings]
        if self._form.as_ and outcome.object is not None:
            return Response(status, object=self._shown(outcome.object), headers=headers)
        return Response(status, object=outcome.object, encoded=outcome.encoded, headers=headers)

    def page(self, page: Page) -> Response:
        type = self._resource.type
        head = {"kind": type.list_kind, "apiVersion": type.api_version, "metadata": page.metadata()}
        if not self._form.as_ and self._resource.from_stored is None:
            return self._encoded_page(orjson.dumps(head)[:-1] + b',"items":[', page.entries)
        objects = [self._context.read(self._resource, entry) for entry in page.entries]
        if not self._form.as_ and not self._resource.custom:
            objects = [{key: each[key] for key in each if key not in ("kind", "apiVersion")} for each in objects]
        return Response(object=self._shown({**head, "items": objects}))

    def _encoded_page(self, start: bytes, entries: list[Entry]) -> Response:
        """A list of stored bytes. Items of built-in kinds omit kind and apiVersion, which the list has."""
        items: Sequence[bytes | memoryview] = [entry.encoded for entry in entries]
        between = b","
        if not self._resource.custom and items:
            type = self._resource.type
            cut = len(orjson.dumps({"kind": type.kind, "apiVersion": type.api_version}))
            items = [memoryview(item)[cut:] for item in items]
            start, between = start + b"{", b",{"
        if sum(map(len, items)) <= _JOIN_BELOW:
            return Response(encoded=start + between.join(items) + b"]}")
        parts: list[bytes | memoryview] = [start]
        for item in items:
            parts += (item, between)
        parts[-1] = b"]}"
        return Response(parts=parts)

    def rendering(self) -> Rendering | None:
        """The conversion of objects in a watch; None for plain objects."""
        if not self._form.as_:
            return None
        first = True

        def render(obj: Object) -> Object:
            nonlocal first
            now = self._context.clock.now()
            shown = transform_event(self._form, self._resource, obj, now=now, include_object=self._include, first=first)
            first = False
            return shown

        return render

    def _shown(self, answer: Object) -> Object:
        now = self._context.clock.now()
        return transform_response(self._form, self._resource, answer, now=now, include_object=self._include)


def warning(text: str) -> tuple[str, str]:
    """A Warning header, which clients show to their user. Field names in the text may contain characters that would
    make a client reject the response, so they are replaced."""
    printable = "".join(each if each.isprintable() else " " for each in text)
    escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
    return "Warning", f'299 - "{escaped}"'
