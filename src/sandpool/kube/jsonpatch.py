"""JSON patch (RFC 6902).

Accepts exactly what kube-apiserver accepts: ``replace`` may name a missing object member, negative list indices count
from the end, and ``copy`` of a missing member yields null. Copies may add at most 3 MiB in total, because each copy can
double the size of the object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from sandpool.kube.errors import TOO_DEEP, MalformedPatch, PatchError, TooLarge
from sandpool.kube.sharing import same, shared

_MAX_OPERATIONS = 10_000
_MAX_COPIED_BYTES = 3 * 1024 * 1024
# After a ``copy`` the next write copies its container again, which is quadratic for a large container.
_MAX_REWRITTEN_MEMBERS = 10_000_000


def json_patch(target: Any, operations: Sequence[Mapping[str, Any] | None] | None) -> Any:
    """Apply all operations in order. Returns ``target`` itself if nothing changed."""
    try:
        document = _Document(target)
        for operation in _checked(operations):
            kind = operation.get("op") or "unknown"
            apply = _OPERATIONS.get(kind)
            if apply is None:
                raise PatchError(f"Unexpected kind: {kind}")
            apply(document, operation)
        return shared(target, document.root)
    except RecursionError:
        raise MalformedPatch(TOO_DEEP) from None


def _checked(operations: Any) -> Sequence[Mapping[str, Any]]:
    """Check the types of the operations. Null means an empty list or operation, as everywhere in Kubernetes."""
    if operations is None:
        return ()
    if not isinstance(operations, list | tuple):
        raise MalformedPatch.wrong_type(operations, "value", "[]handlers.jsonPatchOp")
    if len(operations) > _MAX_OPERATIONS:
        raise TooLarge(
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{_MAX_OPERATIONS}, got {len(operations)}"
        )
    checked = []
    for operation in operations:
        if operation is not None and not isinstance(operation, Mapping):
            raise MalformedPatch.wrong_type(operation, "value", "handlers.jsonPatchOp")
        checked.append(operation or {})
        for name in ("op", "path", "from"):
            text = checked[-1].get(name)
            if text is not None and not isinstance(text, str):
                raise MalformedPatch.wrong_type(text, f"struct field jsonPatchOp.{name}", "string")
    return checked


class _Document:
    """A copy-on-write value. A container is copied at its first write and then changed in place."""

    def __init__(self, root: Any) -> None:
        self.root = root
        # Containers created by this document, by id; the reference prevents reuse of the id. All other containers are
        # shared with the caller or with another place in the document and must not be written to.
        self._own: dict[int, dict[str, Any] | list[Any]] = {}
        self._copied = 0
        self._rewritten = 0

    def container(self, pointer: str, missing: str, *, write: bool = True) -> tuple[dict[str, Any] | list[Any], str]:
        """Return the container that holds the pointer's last token, and the token. Copies only if ``write``."""
        tokens = pointer.split("/")[1:]
        if not tokens:
            raise PatchError(missing)
        # RFC 6901: ~1 first, so that ~01 means ~1 and not a slash.
        tokens = [token.replace("~1", "/").replace("~0", "~") for token in tokens]
        holder = self.root = self._owned(self.root) if write else self.root
        for token in tokens[:-1]:
            child = _child(holder, token, missing)
            if write:
                child = self._owned(child)
                holder[_key(holder, token)] = child
            holder = child
        if not isinstance(holder, dict | list):
            raise PatchError(missing)
        return holder, tokens[-1]

    def _owned(self, value: Any) -> Any:
        if not isinstance(value, dict | list) or id(value) in self._own:
            return value
        self._rewritten += len(value)
        if self._rewritten > _MAX_REWRITTEN_MEMBERS:
            raise PatchError("Unable to complete the patch, its copies rewrite too many members of the object")
        copy = value.copy()
        self._own[id(copy)] = copy
        return copy

    def share(self, value: Any) -> None:
        """Mark ``value`` as used twice in the document, so that no part of it is changed in place afterwards."""
        try:
            self._copied += len(orjson.dumps(value))
        except orjson.JSONEncodeError:
            raise PatchError(TOO_DEEP) from None
        if self._copied > _MAX_COPIED_BYTES:
            raise PatchError(
                f"Unable to complete the copy, the accumulated size increase of copy is {self._copied}, "
                f"exceeding the limit {_MAX_COPIED_BYTES}"
            )
        self._own.clear()


def _child(holder: Any, token: str, missing: str) -> Any:
    try:
        child = _get(holder, token) if isinstance(holder, dict | list) else None
    except PatchError:
        child = None
    if child is None:
        raise PatchError(missing)
    return child


_INDEX = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def _index(token: str, size: int) -> int:
    """Parse a list index; a negative index counts from the end. ``size`` is the number of valid positions."""
    if not _INDEX.fullmatch(token):
        raise PatchError(f'strconv.Atoi: parsing "{token}": invalid syntax')
    index = int(token)
    if not -size <= index < size:
        raise PatchError(f"Unable to access invalid index: {index}: invalid index referenced")
    return index % size


def _key(holder: Any, token: str) -> Any:
    return _index(token, len(holder)) if isinstance(holder, list) else token


def _pointer(operation: Mapping[str, Any], name: str = "path") -> str:
    pointer = operation.get(name)
    if pointer is None:
        raise PatchError(f"{operation['op']} operation failed to decode {name}: missing value")
    return str(pointer)


def _get(holder: dict[str, Any] | list[Any], token: str) -> Any:
    return holder.get(token) if isinstance(holder, dict) else holder[_index(token, len(holder))]


def _insert(holder: dict[str, Any] | list[Any], token: str, value: Any, path: str) -> None:
    if isinstance(holder, dict):
        holder[token] = value
    elif token == "-":
        holder.append(value)
    else:
        try:
            holder.insert(_index(token, len(holder) + 1), value)
        except PatchError as error:
            raise PatchError(f"error in add for path: '{path}': {error.why}") from None


def _delete(holder: dict[str, Any] | list[Any], token: str, path: str) -> None:
    try:
        if isinstance(holder, list):
            del holder[_index(token, len(holder))]
        elif token in holder:
            del holder[token]
        else:
            raise PatchError(f"Unable to remove nonexistent key: {token}: missing value")
    except PatchError as error:
        raise PatchError(f"error in remove for path: '{path}': {error.why}") from None


def _add(document: _Document, operation: Mapping[str, Any]) -> None:
    path = _pointer(operation)
    holder, token = document.container(
        path, f'add operation does not apply: doc is missing path: "{path}": missing value'
    )
    _insert(holder, token, operation.get("value"), path)


def _remove(document: _Document, operation: Mapping[str, Any]) -> None:
    path = _pointer(operation)
    holder, token = document.container(
        path, f'remove operation does not apply: doc is missing path: "{path}": missing value'
    )
    _delete(holder, token, path)


def _replace(document: _Document, operation: Mapping[str, Any]) -> None:
    path, value = _pointer(operation), operation.get("value")
    if path == "":
        if not isinstance(value, dict | list):
            raise PatchError("replace operation value must be object or array")
        document.root = value
        return
    holder, token = document.container(
        path, f"replace operation does not apply: doc is missing path: {path}: missing value"
    )
    try:
        key = _key(holder, token)
    except PatchError:
        raise PatchError(f"replace operation does not apply: doc is missing key: {path}: missing value") from None
    holder[key] = value


def _move(document: _Document, operation: Mapping[str, Any]) -> None:
    source = _pointer(operation, "from")
    holder, token = document.container(
        source, f"move operation does not apply: doc is missing from path: {source}: missing value"
    )
    value = _get(holder, token)
    _delete(holder, token, source)
    path = _pointer(operation)
    holder, token = document.container(
        path, f"move operation does not apply: doc is missing destination path: {path}: missing value"
    )
    _insert(holder, token, value, path)


def _copy(document: _Document, operation: Mapping[str, Any]) -> None:
    source = _pointer(operation, "from")
    holder, token = document.container(
        source, f"copy operation does not apply: doc is missing from path: {source}: missing value", write=False
    )
    value = _get(holder, token)
    document.share(value)
    path = _pointer(operation)
    holder, token = document.container(
        path, f"copy operation does not apply: doc is missing destination path: {path}: missing value"
    )
    _insert(holder, token, value, path)


def _test(document: _Document, operation: Mapping[str, Any]) -> None:
    path = _pointer(operation)
    if path == "":
        found = document.root
    else:
        holder, token = document.container(
            path, f"test operation does not apply: is missing path: {path}: missing value", write=False
        )
        found = _get(holder, token)
    if not same(found, operation.get("value")):
        raise PatchError(f"testing value {path} failed: test failed")


_OPERATIONS: dict[str, Callable[[_Document, Mapping[str, Any]], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}
