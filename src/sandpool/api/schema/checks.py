"""The closures of admission, one per node of a shape (``admit`` explains the design)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, Final

from sandpool.api import causes
from sandpool.api.schema import scalars
from sandpool.api.schema.alternatives import AlternativesCheck, compile_alternatives
from sandpool.api.schema.compiler import Compiler, Step
from sandpool.api.schema.containers import check_array_limits, check_object_limits
from sandpool.api.schema.findings import UNDECODABLE, Findings, Key
from sandpool.api.schema.listtypes import correlator, duplicate_check
from sandpool.api.schema.metadata import metadata_check
from sandpool.api.schema.shape import MISSING, Shape

Check = Step
_NOTHING: Final[Mapping[str, Any]] = {}
_MISSING: Final = repeat(MISSING)


def accept(value: Any, old: Any, found: Findings) -> Any:
    """Accept any value: the check of a shape without constraints."""
    return value


class Checks(Compiler):
    """Compiles shapes. Without ``pruning``, values are only validated: no field is dropped, defaulted or unknown."""

    def __init__(self, *, pruning: bool = True) -> None:
        super().__init__()
        self.pruning = pruning

    def resource(self, shape: Shape) -> Check:
        """Compile the check of a whole object: the shape plus apiVersion, kind and metadata."""
        return self._object(shape, meta=_meta_checks(shape, root=True))

    def _build(self, shape: Shape) -> Check:
        if shape.int_or_string or shape.type in ("string", "integer", "number", "boolean"):
            return self._scalar(shape)
        if shape.type == "object":
            return self._object(shape, _meta_checks(shape, root=False) if shape.embedded_resource else _NOTHING)
        if shape.type == "array":
            return self._array(shape)
        return self._anything(shape)

    def _alternatives(self, shape: Shape) -> AlternativesCheck | None:
        return compile_alternatives(shape, Checks(pruning=False).compile) if scalars.has_alternatives(shape) else None

    def _misfit(self, shape: Shape, alternatives: AlternativesCheck | None) -> Callable[[Any, Findings], Any]:
        """Compile the check of a value of the wrong type: it adds a finding, and all fields of objects in the value are
        unknown."""
        emptying = self.pruning and not shape.preserve_unknown

        def complain(value: Any, found: Findings) -> Any:
            if emptying and type(value) in (dict, list):
                value = _emptied(value, found)
            return scalars.complain(shape, value, found, alternatives)

        return complain

    def _predicate(self, shape: Shape) -> scalars.Predicate | None:
        """A fast predicate for values that need no further check; None if there is none."""
        if shape.type not in ("string", "integer", "number", "boolean") and not shape.int_or_string:
            return None
        if scalars.is_plain(shape) or (scalars.has_alternatives(shape) and not scalars.is_only_int_or_string(shape)):
            return None
        return scalars.predicate(shape)

    def _fast_path(self, shape: Shape | None) -> tuple[type | None, scalars.Predicate | None]:
        """The Python type of values that are always valid, and a predicate for others; None where there is none."""
        if shape is None:
            return None, None
        return scalars.PYTHON_TYPES[shape.type] if scalars.is_plain(shape) else None, self._predicate(shape)

    def _scalar(self, shape: Shape) -> Check:
        fine = scalars.predicate(shape)
        alternatives = self._alternatives(shape)
        complain = self._misfit(shape, alternatives)
        if alternatives is None or scalars.is_only_int_or_string(shape):

            def check(value: Any, old: Any, found: Findings) -> Any:
                return value if fine(value) else complain(value, found)

            return check
        return lambda value, old, found: complain(value, found)

    def _anything(self, shape: Shape) -> Check:
        alternatives = self._alternatives(shape)
        if not scalars.has_constraints(shape) and (shape.preserve_unknown or not self.pruning):
            return accept
        as_object = self._object(shape, _meta_checks(shape, root=False) if shape.embedded_resource else _NOTHING)
        as_array = self._array(shape)

        def check(value: Any, old: Any, found: Findings) -> Any:
            if type(value) is dict:
                return as_object(value, old, found)
            if type(value) is list:
                return as_array(value, old, found)
            return scalars.complain(shape, value, found, alternatives)

        return check

    def _object(self, shape: Shape, meta: Mapping[str, Check] = _NOTHING) -> Check:
        alternatives = self._alternatives(shape)
        misfit = self._misfit(shape, alternatives)
        pruning = self.pruning
        dropping = pruning and not shape.preserve_unknown
        checks = {name: self.compile(each) for name, each in shape.properties.items()} | dict(meta)
        defaults = [
            (name, each.default, checks[name])
            for name, each in shape.properties.items()
            if pruning and each.default is not MISSING and each.default is not None
        ]
        keeps_null = {name for name, each in shape.properties.items() if each.nullable or not pruning} | set(meta)
        values = shape.additional
        value_check = self.compile(values) if values is not None else None
        # Fast paths, by the name of the property: one of a plain type needs only a type test, another scalar only its
        # predicate. All other and all invalid values go through the full check.
        fields = {name: (*self._fast_path(shape.properties.get(name)), inner) for name, inner in checks.items()}
        # A map has no properties, so every key holds a map value.
        other = (*self._fast_path(values if not checks else None), None)
        keeps_null_values = values is not None and (values.nullable or not pruning)
        required = sorted(shape.required)
        judged = bool(
            alternatives or shape.enum or shape.min_properties is not None or shape.max_properties is not None
        )
        embedded = shape.embedded_resource

        def check(value: Any, old: Any, found: Findings) -> Any:
            if type(value) is not dict:
                return misfit(value, found)
            result = value
            before = old if type(old) is dict else _NOTHING
            for (key, item), previous in zip(value.items(), map(before.get, value, _MISSING), strict=False):
                if item is previous:
                    continue
                plain, test, inner = fields.get(key, other)
                if type(item) is plain or (test is not None and test(item)):
                    continue
                if inner is None:
                    if value_check is None:
                        if dropping:
                            found.unknown(key)
                            result = _without(result, value, key)
                        continue
                    if item is None and not keeps_null_values:
                        result = _without(result, value, key)
                        continue
                    inner = value_check
                elif item is None and key not in keeps_null:
                    result = _without(result, value, key)
                    continue
                count = len(found) if found else 0
                new = inner(item, previous, found)
                if found and len(found) != count:
                    found.ratchet(count, new, previous)
                    found.within(Key(key) if inner is value_check else key, count)
                if new is not item:
                    if result is value:
                        result = dict(value)
                    result[key] = new
            for key, default, inner in defaults:
                if key not in result:
                    if result is value:
                        result = dict(value)
                    result[key] = inner(default, MISSING, found)
            for name in required:
                if name not in result:
                    _missing(name, found)
            if embedded:
                for name in ("apiVersion", "kind"):
                    if not result.get(name):
                        _missing(name, found)
            if judged:
                check_object_limits(shape, result, found, alternatives)
            return result

        return check

    def _array(self, shape: Shape) -> Check:
        alternatives = self._alternatives(shape)
        misfit = self._misfit(shape, alternatives)
        items = shape.items
        inner = self.compile(items) if items is not None else self._unknown_items(shape)
        plain = scalars.PYTHON_TYPES[items.type] if items is not None and scalars.is_plain(items) else None
        duplicates = duplicate_check(shape) if self.pruning else None
        correlate = correlator(shape)
        judged = bool(
            alternatives
            or shape.enum
            or shape.min_items is not None
            or shape.max_items is not None
            or shape.unique_items
        )

        def check(value: Any, old: Any, found: Findings) -> Any:
            if type(value) is not list:
                return misfit(value, found)
            result = value
            known = {id(item) for item in old} if old and type(old) is list else None
            previous_of = correlate(old) if known else None
            for index, item in enumerate(value):
                if type(item) is plain or (known and id(item) in known):
                    continue
                previous = previous_of(item) if previous_of is not None else MISSING
                count = len(found) if found else 0
                new = inner(item, previous, found)
                if found and len(found) != count:
                    found.ratchet(count, new, previous)
                    found.within(index, count)
                if new is not item:
                    if result is value:
                        result = list(value)
                    result[index] = new
            if duplicates is not None and (len(result) > 1 or len(found)):
                duplicates(result, found)
            if judged:
                check_array_limits(shape, result, found, alternatives)
            return result

        return check

    def _unknown_items(self, shape: Shape) -> Check:
        """The check of items without a schema: objects lose all fields unless unknown fields are preserved."""
        return accept if shape.preserve_unknown or not self.pruning else self.compile(_ANYTHING)


_ANYTHING: Final = Shape()


def _without(result: dict[str, Any], value: dict[str, Any], key: str) -> dict[str, Any]:
    if result is value:
        result = dict(value)
    del result[key]
    return result


def _emptied(value: Any, found: Findings) -> Any:
    """Remove all fields of the objects in a value."""
    if type(value) is dict:
        for key in value:
            found.unknown(key)
        return {} if value else value
    if type(value) is not list:
        return value
    result = value
    for index, item in enumerate(value):
        count = len(found)
        new = _emptied(item, found)
        found.within(index, count)
        if new is not item:
            if result is value:
                result = list(value)
            result[index] = new
    return result


def _missing(name: str, found: Findings) -> None:
    count = len(found)
    found.add(causes.required)
    found.within(name, count)


def _meta_checks(shape: Shape, *, root: bool) -> dict[str, Check]:
    """Checks of apiVersion, kind and metadata. A schema may restrict the metadata of the root further."""
    restricted = shape.properties.get("metadata") if root else None
    restriction = Checks(pruning=False).compile(restricted) if restricted is not None else accept

    def check_metadata(value: Any, old: Any, found: Findings) -> Any:
        return restriction(metadata_check(value, old, found), old, found)

    return {"apiVersion": _check_type_name, "kind": _check_type_name, "metadata": check_metadata}


def _check_type_name(value: Any, old: Any, found: Findings) -> Any:
    if type(value) is not str:
        found.add(lambda path: causes.invalid(path, value, "must be a string"), UNDECODABLE)
    return value
