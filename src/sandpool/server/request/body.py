"""Decodes a request body (JSON, YAML or protobuf) into a JSON value.

Duplicate keys are found at no cost for bodies without any, which in practice is all of them: a JSON text contains one
colon per member plus those inside its strings, so counting colons tells whether the fast decoder, which keeps the last
of two equal keys, dropped one. Only then a slower decoder parses the text again and records duplicates.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import orjson
import yaml

from sandpool.api.resource import ResourceType
from sandpool.kube.errors import BadRequest, UnsupportedMediaType
from sandpool.kube.transport import APPLY_PATCH
from sandpool.server.protobuf import decode as decode_protobuf
from sandpool.server.store.store import MAX_OBJECT

#: Bytes of a body after YAML aliases are expanded: the same limit as for a stored object and for a request.
MAX_BODY = MAX_OBJECT
_MAX_YAML_NODES = 1_000_000
# Members that merge keys (<<) may copy: each takes about two microseconds of the event loop.
_MAX_YAML_MERGED = 50_000
# sigs.k8s.io/json stops collecting strict decoding errors at this number, too.
_MAX_DUPLICATES = 100
# A path repeats the keys above it, so that a few paths below one long key outgrow the body.
_MAX_DUPLICATES_SIZE = 64 * 1024
# The C parser walks nested nodes by recursion that nothing stops before the stack ends, and the process with it. What
# is nested deeper than this could not be encoded again anyway.
_MAX_YAML_DEPTH = 254

_JSON_TYPES = frozenset({"", "application/json", "*/*"})
_YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
PROTOBUF = "application/vnd.kubernetes.protobuf"
_ACCEPTED = ("application/json", "application/yaml", PROTOBUF)


@dataclass(frozen=True, slots=True)
class Body:
    value: Any
    duplicates: tuple[str, ...] = ()  # paths of keys that occur twice in one object


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def decode(data: bytes, content_type: str, type: ResourceType | None = None) -> Body:
    """Decode the body of a create, update or delete, which should be an object of this type."""
    kind = media_type(content_type)
    try:
        if kind in _JSON_TYPES:
            return _expect_object(decode_json(data))
        if kind in _YAML_TYPES:
            return _expect_object(decode_yaml(data))
    except BadRequest as error:
        raise _unrecognized(error, type) from None
    if kind == PROTOBUF:
        try:
            return Body(decode_protobuf(data, (type.api_version, type.kind) if type else ("v1", "DeleteOptions")))
        except ValueError as error:
            raise BadRequest(f"the body of the request could not be decoded as protobuf: {error}") from None
    raise UnsupportedMediaType(
        f"the body of the request was in an unknown format - accepted media types include: {', '.join(_ACCEPTED)}"
    )


def is_yaml(content_type: str) -> bool:
    return media_type(content_type) in _YAML_TYPES


async def of_yaml(decoding: Awaitable[Body], type: ResourceType) -> Body:
    """As ``decode``, for YAML that the worker process decodes."""
    try:
        return _expect_object(await decoding)
    except BadRequest as error:
        raise _unrecognized(error, type) from None


def _unrecognized(error: BadRequest, type: ResourceType | None) -> BadRequest:
    if type is None:
        return error
    return BadRequest(f"the object provided is unrecognized (must be of type {type.kind}): {error.message}")


def _expect_object(body: Body) -> Body:
    """Check what any object must be before its kind is known. A null is an empty object."""
    value = body.value
    if value is None:
        return Body({})
    if not isinstance(value, dict):
        raise BadRequest("couldn't get version/kind; json parse error: json: cannot unmarshal into an object")
    kind, api_version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str | None) or not isinstance(api_version, str | None):
        raise BadRequest("couldn't get version/kind; json parse error: kind and apiVersion must be strings")
    if api_version is not None and api_version.count("/") > 1:
        raise BadRequest(f"unexpected GroupVersion string: {api_version}")
    return body


def decode_patch(data: bytes, kind: str) -> Body:
    return decode_yaml(data) if is_yaml_patch(data, kind) else decode_json(data)


def is_yaml_patch(data: bytes, kind: str) -> bool:
    """Whether an apply patch needs the YAML decoder. Nearly all clients send JSON, which is a subset of YAML."""
    return kind == APPLY_PATCH and data.lstrip()[:1] != b"{"


def decode_json(data: bytes) -> Body:
    if not data.strip():
        raise BadRequest("couldn't get version/kind; json parse error: the request has no body")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"couldn't get version/kind; json parse error: {error}") from None
    if data.count(b":") == _colons(value) and b"\\u003" not in data:
        return Body(value)
    return Body(value, tuple(_duplicates(data)))


def _colons(value: Any) -> int:
    """The number of colons in a JSON text of this value."""
    count = 0
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            count += len(value)
            for key, member in value.items():
                if ":" in key:
                    count += key.count(":")
                if isinstance(member, str):
                    if ":" in member:
                        count += member.count(":")
                elif isinstance(member, (dict, list)):
                    pending.append(member)
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, str):
            count += value.count(":")
    return count


class _Repeats(dict[str, Any]):
    """An object that records its duplicate keys."""

    repeated: tuple[str, ...] = ()


def _record_duplicates(pairs: list[tuple[str, Any]]) -> _Repeats:
    found = _Repeats(pairs)
    if len(found) != len(pairs):
        found.repeated = tuple(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
    return found


def _duplicates(data: bytes) -> list[str]:
    """The paths of repeated keys, up to limits on their number and size."""
    found: list[str] = []
    path: list[str] = []  # joined only for a key that is repeated: a key may be as long as the body
    left = _MAX_DUPLICATES_SIZE

    def walk(value: Any) -> None:
        nonlocal left
        if isinstance(value, _Repeats):
            for key in value.repeated:
                if len(found) == _MAX_DUPLICATES or left < 0:
                    return
                left -= sum(map(len, path)) + len(key)
                if left >= 0:
                    found.append("".join([*path, key]))
            for key, member in value.items():
                if isinstance(member, _Repeats):
                    path.append(key + ".")
                    walk(member)
                    path.pop()
                elif isinstance(member, list):
                    path.append(key)
                    walk(member)
                    path.pop()
        else:
            for index, item in enumerate(value):
                if isinstance(item, _Repeats | list):
                    path.append(f"[{index}]." if isinstance(item, _Repeats) else f"[{index}]")
                    walk(item)
                    path.pop()

    value = json.loads(data, object_pairs_hook=_record_duplicates)
    if isinstance(value, _Repeats | list):
        walk(value)
    return found


class _YamlLoader(yaml.CSafeLoader):
    """YAML restricted to JSON values: a timestamp stays the string it is, and duplicate keys are recorded."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way of configuring a loader
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []
        self._merged = 0  # members that merge keys (<<) have copied

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Carry out the merge keys of a mapping. Each may copy what others have copied before, so they are counted."""
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(source, yaml.MappingNode):
                        self.flatten_mapping(source)
                        self._merged += len(source.value)
        if self._merged > _MAX_YAML_MERGED:
            raise ValueError("document contains excessive aliasing")
        super().flatten_mapping(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen and len(self.duplicates) < _MAX_DUPLICATES:
                self.duplicates.append(str(key.value))
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def decode_yaml(data: bytes) -> Body:
    loader = None
    try:
        _check_nodes(data)
        loader = _YamlLoader(data)
        value = loader.get_single_data()
    except (yaml.YAMLError, ValueError, TypeError) as error:
        text = " ".join(str(error).split())
        raise BadRequest(f"error decoding YAML: {text}") from None
    except (LookupError, AttributeError):  # how the constructors of tagged scalars (!!int "") fail
        raise BadRequest("error decoding YAML: a value does not fit its tag") from None
    except RecursionError:
        raise BadRequest("error decoding YAML: an anchor contains itself") from None
    finally:
        if loader is not None:
            loader.dispose()
    if value is None:
        raise BadRequest("the request has no body")
    _check_expanded_size(value)
    try:
        return Body(orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)), tuple(loader.duplicates))
    except (TypeError, ValueError) as error:
        raise BadRequest(f"error converting YAML to JSON: {error}") from None


def _check_nodes(data: bytes) -> None:
    """Before any of them is made: each takes a thousand times the memory of what it is written with."""
    depth = nodes = 0
    anchors: list[str | None] = []  # of the collections around the event
    for event in yaml.parse(data, yaml.CSafeLoader):
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if nodes > _MAX_YAML_NODES:
                raise ValueError(f"document contains more than {_MAX_YAML_NODES} nodes")
        if isinstance(event, yaml.AliasEvent) and event.anchor in anchors:
            raise ValueError("an anchor contains itself")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            anchors.append(event.anchor)
            if depth > _MAX_YAML_DEPTH:
                raise ValueError(f"exceeded max depth of {_MAX_YAML_DEPTH}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            anchors.pop()


def _check_expanded_size(value: Any) -> None:
    """Refuse a value that is larger as JSON than a request body may be.

    An alias in YAML is a reference, so a few hundred bytes can stand for gigabytes. Strings and keys count in bytes,
    every other scalar and the punctuation of a node count as one byte. The check stops at the limit, so its cost is
    that of a body of the largest size at most.
    """
    left = MAX_BODY
    pending = [value]
    while pending:
        value = pending.pop()
        left -= 1
        if isinstance(value, str):
            left -= len(value) if value.isascii() else len(value.encode())
        elif isinstance(value, dict):
            left -= len(value)
            for key in value:
                if isinstance(key, str):
                    left -= len(key) if key.isascii() else len(key.encode())
            pending.extend(value.values())
        elif isinstance(value, list):
            left -= len(value)
            if left >= 0:
                pending.extend(value)
        if left < 0:
            raise BadRequest("error converting YAML to JSON: document contains excessive aliasing")
