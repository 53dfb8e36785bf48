"""The type graph everything else works from: one node says what a value may look like and how it merges.

A ``Shape`` is an OpenAPI schema with its references resolved into pointers. Admission compiles it, patches and
server-side apply ask it for merge keys, CRD manifests are written from it. Graphs may be cyclic (a
CustomResourceDefinition contains schemas that contain schemas), so nothing here walks one without a memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final


class _Missing(Enum):
    MISSING = "missing"

    def __bool__(self) -> bool:
        return False


# "There is no default": None cannot say so, because null is a default a schema may have.
MISSING: Final = _Missing.MISSING


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``x-kubernetes-validations``."""

    rule: str
    message: str = ""
    message_expression: str = ""
    reason: str = ""
    field_path: str = ""
    optional_old_self: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Shape:
    """One node of a type graph. Nodes are shared between graphs and never change after they are built."""

    type: str = ""  # "object", "array", "string", "integer", "number", "boolean"; "" is anything
    properties: dict[str, Shape] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    additional: Shape | None = None  # the values of a map; None: not a map
    items: Shape | None = None
    list_type: str = "atomic"  # "atomic", "set" or "map"; only for type "array"
    list_keys: tuple[str, ...] = ()
    map_type: str = "granular"  # or "atomic"; only for type "object"
    patch_strategy: str = ""  # "", "merge", "replace", "retainKeys" or "merge,retainKeys"
    patch_merge_key: str = ""
    nullable: bool = False
    int_or_string: bool = False
    preserve_unknown: bool = False
    embedded_resource: bool = False
    format: str = ""
    pattern: str = ""
    enum: tuple[Any, ...] = ()
    default: Any = MISSING
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool = False
    min_properties: int | None = None
    max_properties: int | None = None
    rules: tuple[Rule, ...] = ()
    all_of: tuple[Shape, ...] = ()
    any_of: tuple[Shape, ...] = ()
    one_of: tuple[Shape, ...] = ()
    not_: Shape | None = None
    title: str = ""
    description: str = ""
    # How a Go API server stores an empty value of this field, see dev/core-types: "omit" drops it, "keep" stores it,
    # "null" stores an absent value as null. "" is "omit", except that a default is stored.
    zero: str = ""
    go_type: str = ""  # the Go name of the type, where decoding errors quote an unusual one
    go_within: str = ""  # the embedded Go struct the field is declared in, which paths in decoding errors name too
    # The name this shape has among the definitions it came from ("" for an anonymous one).
    name: str = ""

    def __repr__(self) -> str:
        return f"<Shape {self.name or self.type or 'anything'}>"


# How a schema keyword is spelled, for the ones that are copied as they are.
_COPIED: Final = {
    "type": "type",
    "format": "format",
    "pattern": "pattern",
    "title": "title",
    "description": "description",
    "nullable": "nullable",
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusiveMinimum": "exclusive_minimum",
    "exclusiveMaximum": "exclusive_maximum",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_items",
    "maxItems": "max_items",
    "uniqueItems": "unique_items",
    "minProperties": "min_properties",
    "maxProperties": "max_properties",
    "default": "default",
    "x-kubernetes-list-type": "list_type",
    "x-kubernetes-map-type": "map_type",
    "x-kubernetes-patch-strategy": "patch_strategy",
    "x-kubernetes-patch-merge-key": "patch_merge_key",
    "x-kubernetes-int-or-string": "int_or_string",
    "x-kubernetes-preserve-unknown-fields": "preserve_unknown",
    "x-kubernetes-embedded-resource": "embedded_resource",
}
# Read from the data of the built-in kinds, never written into a schema.
_PRIVATE: Final = {"x-zero": "zero", "x-go-type": "go_type", "x-go-within": "go_within"}
_READ: Final = _COPIED | _PRIVATE
_RULE_KEYS: Final = {
    "rule": "rule",
    "message": "message",
    "messageExpression": "message_expression",
    "reason": "reason",
    "fieldPath": "field_path",
    "optionalOldSelf": "optional_old_self",
}


class Definitions:
    """Named schemas, turned into shapes one by one as they are asked for, each exactly once."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.schemas = schemas
        self._built: dict[str, Shape] = {}
        # References with siblings ({"$ref": ..., "default": {}}) are the target with changes. The target may still be
        # under construction, so they are filled in when the outermost build is done.
        self._derived: list[tuple[Shape, Shape, Mapping[str, Any]]] = []
        self._depth = 0

    def __getitem__(self, name: str) -> Shape:
        """The shape of a definition. Raises KeyError for a name that is not defined."""
        built = self._built.get(name)
        if built is None:
            schema = self.schemas[name]
            built = self._built[name] = Shape(name=name)
            self._build(built, schema)
        return built

    def shape(self, schema: Mapping[str, Any]) -> Shape:
        """The shape of an anonymous schema whose references point here."""
        reference = schema.get("$ref")
        if reference is not None and len(schema) == 1:
            return self[_definition_name(reference)]
        shape = Shape()
        self._build(shape, schema)
        return shape

    def _build(self, shape: Shape, schema: Mapping[str, Any]) -> None:
        self._depth += 1
        try:
            reference = schema.get("$ref")
            if reference is None:
                self._fill(shape, schema)
            else:
                self._derived.append((shape, self[_definition_name(reference)], schema))
            while self._depth == 1 and self._derived:
                derived, target, siblings = self._derived.pop(0)
                for name in _FIELDS:
                    setattr(derived, name, getattr(target, name))
                self._fill(derived, siblings)
        finally:
            self._depth -= 1

    def _fill(self, shape: Shape, schema: Mapping[str, Any]) -> None:
        for key, value in schema.items():
            if key in _READ:
                setattr(shape, _READ[key], value)
            elif key == "properties":
                shape.properties = {sys.intern(name): self.shape(inner) for name, inner in value.items()}
            elif key == "required":
                shape.required = frozenset(value)
            elif key == "items":
                shape.items = self.shape(value)
            elif key == "additionalProperties":
                if isinstance(value, Mapping):
                    shape.additional = self.shape(value)
                elif value:
                    shape.additional = Shape(nullable=True)
            elif key == "enum":
                shape.enum = tuple(value)
            elif key == "x-kubernetes-list-map-keys":
                shape.list_keys = tuple(value)
            elif key == "x-kubernetes-validations":
                shape.rules = tuple(
                    Rule(**{_RULE_KEYS[k]: v for k, v in rule.items() if k in _RULE_KEYS}) for rule in value
                )
            elif key == "not":
                shape.not_ = self.shape(value)
            elif key == "anyOf":
                shape.any_of = self._shapes(value)
            elif key == "oneOf":
                shape.one_of = self._shapes(value)
            elif key == "allOf":
                shape.all_of = self._shapes(value)

    def _shapes(self, schemas: Iterable[Mapping[str, Any]]) -> tuple[Shape, ...]:
        return tuple(map(self.shape, schemas))


_FIELDS: Final = tuple(f.name for f in fields(Shape))


def _definition_name(reference: str) -> str:
    """``#/components/schemas/X`` and ``#/definitions/X`` both mean X."""
    return reference.rsplit("/", 1)[-1]


def from_openapi(schema: Mapping[str, Any], definitions: Mapping[str, Mapping[str, Any]] | None = None) -> Shape:
    """The shape of a schema. References are looked up in ``definitions`` (KeyError if one is not there); keywords that
    say nothing about values or merging are ignored."""
    return Definitions(definitions or {}).shape(schema)


def to_openapi(shape: Shape) -> dict[str, Any]:
    """The schema of a shape, with everything written out in place. Raises ValueError for a cyclic graph, which has no
    such form."""
    return _write(shape, ())


def _write(shape: Shape, above: tuple[Shape, ...]) -> dict[str, Any]:
    if shape in above:
        raise ValueError(f"{shape} contains itself and cannot be written without references")
    above = (*above, shape)
    schema: dict[str, Any] = {}
    for key, name in _COPIED.items():
        value = getattr(shape, name)
        if value != _DEFAULTS[name] or type(value) is not type(_DEFAULTS[name]):
            schema[key] = value
    if shape.properties:
        schema["properties"] = {name: _write(inner, above) for name, inner in shape.properties.items()}
    if shape.required:
        schema["required"] = sorted(shape.required)
    if shape.additional is not None:
        schema["additionalProperties"] = _write(shape.additional, above)
    if shape.items is not None:
        schema["items"] = _write(shape.items, above)
    if shape.enum:
        schema["enum"] = list(shape.enum)
    if shape.list_keys:
        schema["x-kubernetes-list-map-keys"] = list(shape.list_keys)
    if shape.rules:
        schema["x-kubernetes-validations"] = [
            {key: value for key, name in _RULE_KEYS.items() if (value := getattr(rule, name))} for rule in shape.rules
        ]
    for key, alternatives in (("allOf", shape.all_of), ("anyOf", shape.any_of), ("oneOf", shape.one_of)):
        if alternatives:
            schema[key] = [_write(inner, above) for inner in alternatives]
    if shape.not_ is not None:
        schema["not"] = _write(shape.not_, above)
    return schema


_DEFAULTS: Final = {f.name: getattr(Shape(), f.name) for f in fields(Shape)}
