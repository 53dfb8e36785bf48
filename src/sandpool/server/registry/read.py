"""The get and list verbs: selectors, consistent pagination and resourceVersion semantics."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import orjson

from sandpool.api.causes import Cause
from sandpool.api.resource import Key, ResourceType
from sandpool.kube.errors import ApiError, BadRequest, Expired, ServerTimeout, invalid, not_found
from sandpool.kube.selectors import FieldSelector, LabelSelector
from sandpool.server.kinds.strategy import METADATA_FIELDS
from sandpool.server.registry.context import RegistryContext, filled
from sandpool.server.request.options import ListOptions
from sandpool.server.resources import Resource
from sandpool.server.store.entry import Entry
from sandpool.server.store.history import Compacted

_EXPIRED_TOKEN = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
LIST_OPTIONS = ResourceType("meta.k8s.io", "v1", "ListOptions", "")
_EXACT = ("", "Exact", "NotOlderThan")


def get(context: RegistryContext, resource: Resource, namespace: str, name: str) -> Entry:
    entry = context.store.get(resource.storage, Key(namespace, name))
    if entry is None:
        raise not_found(resource.type, name)
    return filled(resource, entry)


@dataclass(slots=True)
class Page:
    entries: list[Entry]
    revision: int
    continue_token: str = ""
    remaining: int | None = None

    def metadata(self) -> dict[str, str | int]:
        metadata: dict[str, str | int] = {"resourceVersion": str(self.revision)}
        if self.continue_token:
            metadata["continue"] = self.continue_token
        if self.remaining is not None:
            metadata["remainingItemCount"] = self.remaining
        return metadata


class Selection:
    """The label and field selectors of a request. Decodes an object only if a field selector needs it."""

    def __init__(
        self, context: RegistryContext, resource: Resource, labels: LabelSelector | None, fields: FieldSelector | None
    ) -> None:
        if fields is not None:
            resource.strategy.check_field_labels(fields.names)
        self._context = context
        self._resource = resource
        self._labels = labels
        self._fields = fields
        self._needs_object = fields is not None and not fields.names <= METADATA_FIELDS
        self.name = fields.requires_exact("metadata.name") if fields is not None else None
        self.namespace = fields.requires_exact("metadata.namespace") if fields is not None else None
        self.everything = labels is None and fields is None

    def matches(self, entry: Entry) -> bool:
        if self._labels is not None and not self._labels.matches(entry.labels):
            return False
        return self._fields is None or self._fields.matches(self._values(entry))

    def _values(self, entry: Entry) -> Mapping[str, str]:
        values = {"metadata.namespace": entry.key[0], "metadata.name": entry.key[1]}
        if self._needs_object:
            values.update(self._resource.strategy.selectable_fields(self._context.read(self._resource, entry)))
        return values


def select(
    context: RegistryContext, resource: Resource, namespace: str | None, options: ListOptions
) -> Iterator[Entry]:
    """All selected committed objects, in order."""
    selection = Selection(context, resource, options.labels, options.fields)
    return filter(selection.matches, context.store.scan(resource.storage, namespace))


def listing(
    context: RegistryContext, resource: Resource, namespace: str | None, options: ListOptions, *, later: bool = False
) -> Callable[[], Page]:
    """Find the objects for a list, and return the function that selects a page of them. It must be called before
    control returns to the event loop, unless ``later`` is set. Raises ``Expired`` for a revision that was compacted."""
    selection = Selection(context, resource, options.labels, options.fields)
    _check_match(options)
    store = context.store
    after: Key | None = None
    revision = store.revision
    exact = False
    if options.continue_token:
        token_revision, after = _parse_token(options)
        if token_revision >= 0:
            revision, exact = token_revision, True
    elif options.resource_version not in ("", "0"):
        asked = parse_version(options.resource_version)
        if asked > store.revision:
            raise too_large(asked, store.revision)
        if options.resource_version_match == "Exact":
            revision, exact = asked, True
    try:
        entries = store.scan(resource.storage, namespace, after=after, revision=revision if exact else None)
    except Compacted as error:
        if options.continue_token:
            raise _expired_token(after or Key("", "")) from error
        raise Expired(f"The resourceVersion for the provided list is too old: {error}") from error
    if later:
        entries = iter(list(entries))

    def select_page() -> Page:
        page = _collect(entries, selection, options.limit, revision)
        if resource.fill is not None:
            for entry in page.entries:
                filled(resource, entry)
        return page

    return select_page


def _collect(entries: Iterator[Entry], selection: Selection, limit: int, revision: int) -> Page:
    page = Page([], revision)
    matches = selection.matches
    for entry in entries:
        if not selection.everything and not matches(entry):
            continue
        if limit and len(page.entries) == limit:
            page.continue_token = _token(revision, page.entries[-1].key)
            if selection.everything:
                page.remaining = 1 + sum(1 for _ in entries)
            break
        page.entries.append(entry)
    return page


def _check_match(options: ListOptions) -> None:
    """Refuse invalid combinations of resourceVersion, resourceVersionMatch and continue."""
    match, version = options.resource_version_match, options.resource_version
    causes = []
    if match:
        field = "resourceVersionMatch"
        if options.continue_token:
            why = "resourceVersionMatch is forbidden when continue is provided"
            causes.append(Cause(field, "FieldValueForbidden", f"Forbidden: {why}"))
        if not version:
            why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
            causes.append(Cause(field, "FieldValueForbidden", f"Forbidden: {why}"))
        if match not in _EXACT:
            why = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""'
            causes.append(Cause(field, "FieldValueNotSupported", why))
        if match == "Exact" and version == "0":
            why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            causes.append(Cause(field, "FieldValueForbidden", f"Forbidden: {why}"))
    if causes:
        raise invalid(LIST_OPTIONS, "", causes)
    if options.continue_token and version not in ("", "0"):
        raise BadRequest("specifying resource version is not allowed when using continue")


def parse_version(text: str) -> int:
    # More than 20 digits exceed 64 bits, and int() refuses thousands of digits.
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        cause = Cause("resourceVersion", "FieldValueInvalid", f'Invalid value: "{text}": must be a number')
        raise invalid(ResourceType("", "v1", "", ""), text, [cause])
    return int(text)


def too_large(asked: int, current: int) -> ApiError:
    return ServerTimeout(
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details={
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    )


# A continue token is opaque to clients. It names the revision of the first page and the last key of this one; a
# revision of -1 means that the client accepts an inconsistent continuation.


def _token(revision: int, key: Key) -> str:
    content = orjson.dumps({"v": "meta.k8s.io/v1", "rv": revision, "start": list(key)})
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _parse_token(options: ListOptions) -> tuple[int, Key]:
    text = options.continue_token
    try:
        content = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        version, revision, (namespace, name) = content["v"], content["rv"], content["start"]
        if version != "meta.k8s.io/v1" or not isinstance(revision, int):
            raise ValueError("not a token of this server")
        return revision, Key(str(namespace), str(name))
    except (ValueError, TypeError, KeyError, binascii.Error) as error:
        raise BadRequest(f"continue key is not valid: {error}") from None


def _expired_token(after: Key) -> Expired:
    error = Expired(_EXPIRED_TOKEN)
    error.list_metadata = {"continue": _token(-1, after)}
    return error
