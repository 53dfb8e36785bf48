"""Validation of scalar values: a fast predicate for valid values, all findings for the others.

Nearly every value is fine, so each shape gets a predicate made of nothing but what it constrains. Only where that says
no, ``complain`` goes through everything a schema can say about a value, in kube-apiserver's order and words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from sandpool.api import causes
from sandpool.api.causes import Cause
from sandpool.api.schema.findings import Findings
from sandpool.api.schema.formats import format_test
from sandpool.api.schema.patterns import compile_pattern
from sandpool.api.schema.shape import Shape

Predicate = Callable[[Any], bool]

PYTHON_TYPES: Final[dict[str, type]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": float,
    "object": dict,
    "array": list,
}
_INTEGERS: Final = {"": (-(2**63), 2**63 - 1), "int64": (-(2**63), 2**63 - 1), "int32": (-(2**31), 2**31 - 1)}
_LARGEST_EXACT: Final = 2**53 - 1  # largest integer that a JSON number represents exactly
_SHORT: Final = 64  # maximum length of cached strings
# Field of causes that have no field in a Status.
_NOWHERE: Final = "<nil>"


def json_type(value: Any) -> str:
    """The JSON schema type of a value."""
    if value is None:
        return "null"
    kind = type(value)
    if kind is int:
        return "integer" if -(2**63) <= value < 2**63 else "number"
    return next((name for name, python in PYTHON_TYPES.items() if kind is python), "object")


def is_plain(shape: Shape) -> bool:
    """Whether the Python type alone decides validity. Integers also have a range."""
    return shape.type in ("string", "boolean") and not (
        shape.nullable
        or shape.enum
        or shape.pattern
        or shape.max_length is not None
        or shape.min_length
        or (shape.type == "string" and format_test(shape.format))
        or has_alternatives(shape)
    )


def has_alternatives(shape: Shape) -> bool:
    return bool(shape.all_of or shape.any_of or shape.one_of or shape.not_)


# Constraints of a shape, without pruning, merging and descriptions.
_CONSTRAINTS: Final = (
    *("type", "properties", "required", "additional", "items", "nullable", "int_or_string", "embedded_resource"),
    *("format", "pattern", "enum", "minimum", "maximum", "multiple_of", "min_length", "max_length", "min_items"),
    *("max_items", "unique_items", "min_properties", "max_properties", "rules", "all_of", "any_of", "one_of", "not_"),
)
_UNCONSTRAINED: Final = Shape()


def has_constraints(shape: Shape) -> bool:
    return any(getattr(shape, name) != getattr(_UNCONSTRAINED, name) for name in _CONSTRAINTS)


def is_only_int_or_string(shape: Shape) -> bool:
    """Whether the alternatives of an int-or-string only repeat the two types, as in many CRDs."""
    return (
        shape.int_or_string
        and [each.type for each in shape.any_of] == ["integer", "string"]
        and not (shape.all_of or shape.one_of or shape.not_)
    )


def predicate(shape: Shape) -> Predicate:
    """Whether a value of the shape's scalar type is valid. Ignores alternatives."""
    if shape.int_or_string:
        strings, integers = _string_predicate(shape), _integer_predicate(shape)
        return lambda value: strings(value) if type(value) is str else integers(value)
    return {"string": _string_predicate, "integer": _integer_predicate, "number": _number_predicate}.get(
        shape.type, _boolean_predicate
    )(shape)


def _boolean_predicate(shape: Shape) -> Predicate:
    allowed = shape.enum
    return lambda value: type(value) is bool and (not allowed or any(value is each for each in allowed))


def _string_predicate(shape: Shape) -> Predicate:
    if shape.enum:
        allowed = frozenset(each for each in shape.enum if type(each) is str)
        in_enum = allowed.__contains__
    else:
        in_enum = None
    longest, shortest = shape.max_length, shape.min_length
    matches = compile_pattern(shape.pattern).search if shape.pattern else None
    well_formed = None if shape.int_or_string else format_test(shape.format)

    def fine(value: Any) -> bool:
        return (
            type(value) is str
            and (longest is None or len(value) <= longest)
            and (shortest is None or len(value) >= shortest)
            and (matches is None or matches(value) is not None)
            and (well_formed is None or well_formed(value))
            and (in_enum is None or in_enum(value))
        )

    return fine if matches is None and well_formed is None else _remembering(fine)


def _remembering(fine: Predicate) -> Predicate:
    """Cache the predicate for short strings: a lookup is cheaper than a pattern or format, and strings repeat."""
    known = lru_cache(maxsize=256)(fine)
    return lambda value: type(value) is str and (known(value) if len(value) <= _SHORT else fine(value))


def _integer_predicate(shape: Shape) -> Predicate:
    low, high = _INTEGERS.get(shape.format, _INTEGERS[""])
    if shape.minimum is not None:
        low = max(low, int(shape.minimum) + shape.exclusive_minimum)
    if shape.maximum is not None:
        high = min(high, int(shape.maximum) - shape.exclusive_maximum)
    if not shape.enum and shape.multiple_of is None:
        return lambda value: type(value) is int and low <= value <= high
    allowed, factor = shape.enum, shape.multiple_of

    def fine(value: Any) -> bool:
        return (
            type(value) is int
            and low <= value <= high
            and (not allowed or _in_enum(value, allowed))
            and (factor is None or _is_multiple(value, factor))
        )

    return fine


def _number_predicate(shape: Shape) -> Predicate:
    def fine(value: Any) -> bool:
        found: list[Callable[[str], Cause]] = []
        if type(value) is not int and type(value) is not float:
            return False
        _check_number(shape, value, found.append)
        return not found and (not shape.enum or _in_enum(value, shape.enum))

    return fine


# --- findings --------------------------------------------------------------------------------------------------------


def complain(shape: Shape, value: Any, found: Findings, alternatives: Callable[[Any, Findings], None] | None) -> Any:
    """Add all findings of a value. Returns the value, normalised if needed (1.0 to 1)."""
    if type(value) is float and _wants_integer(shape) and value.is_integer() and abs(value) <= _LARGEST_EXACT:
        value = int(value)
    type_problem = _type_problem(shape, value)
    if type_problem is not None:
        wanted, got = type_problem
        found.add(
            lambda path: causes.wrong_type(path, got, f"{path} in body must be of type {wanted}: {causes.quoted(got)}")
        )
    if value is not None:
        if alternatives is not None:
            alternatives(value, found)
        if type(value) is str:
            _complain_about_string(shape, value, found)
        elif type(value) is int or type(value) is float:
            _check_number(shape, value, found.add)
    if shape.enum and not _in_enum(value, shape.enum) and not (value is None and shape.nullable):
        found.add(lambda path: causes.not_supported(path, value, shape.enum))
    return value


def _wants_integer(shape: Shape) -> bool:
    return shape.type == "integer" or shape.int_or_string


def _type_problem(shape: Shape, value: Any) -> tuple[str, str] | None:
    """Expected and actual type as named in messages; None if the type is right."""
    wanted = ["integer", "string"] if shape.int_or_string else [shape.type] if shape.type else []
    got = json_type(value)
    if not wanted or got in wanted or (got == "null" and shape.nullable) or ("number" in wanted and got == "integer"):
        return None
    known_format = _known_format(shape)
    # For values other than strings and lists, messages name formats instead of types.
    if known_format and got not in ("string", "array", "null"):
        return known_format, {"integer": "int64", "number": "float64"}.get(got, "")
    return ",".join(wanted), got


def _known_format(shape: Shape) -> str:
    if shape.int_or_string:
        return ""
    if shape.type == "integer":
        known = shape.format in ("int32", "int64")
    elif shape.type == "number":
        known = shape.format in ("float", "double")
    else:
        known = format_test(shape.format) is not None
    return shape.format if known else ""


def _complain_about_string(shape: Shape, value: str, found: Findings) -> None:
    longest, shortest, pattern = shape.max_length, shape.min_length, shape.pattern
    if longest is not None and len(value) > longest:
        found.add(lambda path: causes.too_long(path, longest))
    elif shortest is not None and len(value) < shortest:
        found.add(lambda path: causes.invalid(path, value, f"{path} in body should be at least {shortest} chars long"))
    elif pattern and compile_pattern(pattern).search(value) is None:
        found.add(lambda path: causes.invalid(path, value, f"{path} in body should match '{pattern}'"))
    well_formed = None if shape.int_or_string or shape.type not in ("", "string") else format_test(shape.format)
    if well_formed is not None and not well_formed(value):
        found.add(
            lambda path: causes.wrong_type(
                path, value, f"{path} in body must be of type {shape.format}: {causes.quoted(value)}"
            )
        )


def _check_number(shape: Shape, value: int | float, add: Callable[[Callable[[str], Cause]], object]) -> None:
    if shape.type == "integer":
        low, high = _INTEGERS.get(shape.format, _INTEGERS[""])
        if type(value) is float or not low <= value <= high:
            described = f"with format {shape.format}" if _known_format(shape) else "(default format)"
            text = f"Checked value must be of type integer {described} in "
            add(lambda path: causes.invalid(_NOWHERE, "", text + path))
    if type(value) is int and json_type(value) == "number":
        value = float(value) if abs(value) < 10**300 else math.inf  # an integer beyond 64 bits is decoded as a float
    for problem in (_multiple_problem(shape, value), _minimum_problem(shape, value), _maximum_problem(shape, value)):
        if problem is not None:
            _add_number_error(add, value, problem)


def _add_number_error(add: Callable[[Callable[[str], Cause]], object], value: int | float, problem: str) -> None:
    add(lambda path: causes.invalid(path, value, f"{path} in body {problem}"))


def _multiple_problem(shape: Shape, value: int | float) -> str | None:
    if shape.multiple_of is None or _is_multiple(value, shape.multiple_of):
        return None
    return f"should be a multiple of {causes.number(float(shape.multiple_of))}"


def _is_multiple(value: int | float, factor: float) -> bool:
    if type(value) is int and float(factor).is_integer():
        return value % int(factor) == 0
    quotient = value / factor
    return math.isfinite(quotient) and abs(quotient - round(quotient)) < 1e-9


def _minimum_problem(shape: Shape, value: int | float) -> str | None:
    bound = _bound(shape.minimum, value)
    if bound is None or value > bound or (value == bound and not shape.exclusive_minimum):
        return None
    return f"should be greater than {'' if shape.exclusive_minimum else 'or equal to '}{causes.shown(bound)}"


def _maximum_problem(shape: Shape, value: int | float) -> str | None:
    bound = _bound(shape.maximum, value)
    if bound is None or value < bound or (value == bound and not shape.exclusive_maximum):
        return None
    return f"should be less than {'' if shape.exclusive_maximum else 'or equal to '}{causes.shown(bound)}"


def _bound(limit: float | None, value: int | float) -> int | float | None:
    """Integers are compared with the integral part of a limit, as in kube-apiserver (0 satisfies a minimum of 0.5)."""
    return limit if limit is None or type(value) is float else int(limit)


def _in_enum(value: Any, allowed: tuple[Any, ...]) -> bool:
    numeric = type(value) in (int, float)
    return any(
        value == each and (type(value) is type(each) or (numeric and type(each) in (int, float))) for each in allowed
    )
