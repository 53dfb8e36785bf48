"""The JSONPath of kubectl and of CRDs: printer columns, scale and selectable fields use it.

A path is compiled once and applied to many objects. It supports the syntax that Kubernetes documents for columns:
fields (``.spec.replicas``, ``['a.b']``, escaped dots), indexes, slices, unions, wildcards, recursive descent and
filters such as ``[?(@.type=="Ready")]``; templates (``range``, text) are not paths and are rejected.

A path that does not fit an object (a missing field, an index out of range, a filter on something that is no list)
finds nothing. That is how kube-apiserver treats columns: an unexpected object must not make a list
unreadable.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Values = list[Any]
_Step = Callable[[Values], Values]

_FIELD = re.compile(r"(?:\\.|[^\s.,\[\]$@{}\\])+")
_QUOTED = re.compile(r"""(?P<quote>['"])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)""")
_SLICE = re.compile(r"(-?\d*)(:-?\d*)?(:-?\d*)?")
_COMPARISON = re.compile(r"(?P<left>[^!<>=]+)(?P<operator>[!<>=]+)(?P<right>.+)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _NoMatchError(Exception):
    """The path does not fit the object."""


class JsonPath:
    """A compiled path."""

    __slots__ = ("_steps", "text")

    def __init__(self, text: str) -> None:
        """Raises ``ValueError`` if the text is no path."""
        self.text = text
        self._steps = _parse(text.removeprefix("{").removesuffix("}") if text.startswith("{") else text)

    def find(self, obj: Any) -> Values:
        """Every value the path leads to, in order."""
        values = [obj]
        try:
            for step in self._steps:
                values = step(values)
        except _NoMatchError:
            return []
        return values


@lru_cache(maxsize=1024)
def compile_path(text: str) -> JsonPath:
    """``JsonPath(text)``, remembered: the same columns are printed over and over."""
    return JsonPath(text)


def field_path(text: str) -> tuple[str, ...]:
    """Return the field names of a path of fields only, like ``.spec.replicas``, as scale and selectable fields require.

    Raises ``ValueError`` for any other path.
    """
    names = []
    position = 0
    while position < len(text):
        match = _FIELD.match(text, position + 1) if text[position] == "." else None
        if match is None:
            raise ValueError(f"{text!r} is not a path of fields like .spec.replicas")
        names.append(_unescape(match[0]))
        position = match.end()
    if not names:
        raise ValueError("a path of fields must not be empty")
    return tuple(names)


def _parse(text: str, *, in_filter: bool = False) -> list[_Step]:
    steps: list[_Step] = []
    position = 1 if text[:1] in ("$", "@") else 0
    while position < len(text):
        if text.startswith("[?(", position):
            if in_filter:
                raise ValueError("a filter cannot contain a filter")
            step, position = _parse_filter(text, position + 3)
        elif text[position] == "[":
            step, position = _parse_brackets(text, position + 1)
        elif text.startswith("..", position):
            step, position = _descend, position + 2
            if position < len(text) and text[position] != "[":
                position -= 1  # a field follows; the second dot is its own
                if text.startswith("..", position):
                    raise ValueError("invalid multiple recursive descent")
        elif text[position] == ".":
            match = _FIELD.match(text, position + 1)
            if match is None:
                raise ValueError(f"expected a field name at position {position + 1} of {text!r}")
            step, position = _wildcard if match[0] == "*" else _field(_unescape(match[0])), match.end()
        else:
            raise ValueError(f"unrecognized character {text[position]!r} at position {position} of {text!r}")
        steps.append(step)
    return steps


def _parse_brackets(text: str, start: int) -> tuple[_Step, int]:
    """Parse the content of ``[...]``: names, numbers, slices, or several of them."""
    position = start
    while position < len(text) and text[position] != "]":
        quoted = _QUOTED.match(text, position)
        position = quoted.end() if quoted else position + 1
    if position >= len(text):
        raise ValueError(f"unterminated array in {text!r}")
    selections = [_selection(part.strip()) for part in _split_union(text[start:position])]
    return selections[0] if len(selections) == 1 else _union(selections), position + 1


def _split_union(text: str) -> list[str]:
    parts, begin, position = [], 0, 0
    while position < len(text):
        quoted = _QUOTED.match(text, position)
        if quoted:
            position = quoted.end()
            continue
        if text[position] == ",":
            parts.append(text[begin:position])
            begin = position + 1
        position += 1
    return [*parts, text[begin:]]


def _selection(text: str) -> _Step:
    if text == "*":
        return _elements(None, None, 1)
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        return _field(_unescape(quoted["text"]))
    match = _SLICE.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"invalid array index {text}")
    first, stop, step = match.groups()
    if stop is None:
        return _element(int(first))
    numbers = [int(part) if part else None for part in (first, stop[1:], (step or ":")[1:])]
    if numbers[2] is not None and numbers[2] <= 0:
        raise ValueError("step must be > 0")
    return _elements(numbers[0], numbers[1], numbers[2] or 1)


def _parse_filter(text: str, start: int) -> tuple[_Step, int]:
    """Parse the content of ``[?(...)]``: one comparison, or a path that must find a value."""
    position = start
    while position < len(text) and text[position] != ")":
        quoted = _QUOTED.match(text, position)
        position = quoted.end() if quoted else position + 1
    if text[position : position + 2] != ")]":
        raise ValueError(f"unterminated filter in {text!r}")
    condition = text[start:position]
    comparison = _COMPARISON.fullmatch(condition)
    if comparison is None:
        return _filter(_exists(_operand(condition))), position + 2
    holds = _OPERATORS.get(comparison["operator"])
    if holds is None:
        raise ValueError(f"unrecognized filter operator {comparison['operator']}")
    return _filter(_compare(_operand(comparison["left"]), holds, _operand(comparison["right"]))), position + 2


def _operand(text: str) -> Callable[[Any], Values]:
    """One side of a comparison: a literal, or a path from the element that is being tested."""
    text = text.strip()
    quoted = _QUOTED.fullmatch(text)
    literal: Any
    if quoted:
        literal = _unescape(quoted["text"])
    elif _NUMBER.fullmatch(text):
        literal = float(text) if "." in text else int(text)
    elif text in ("true", "false"):
        literal = text == "true"
    elif text[:1] in ("@", ".", "$"):
        steps = _parse(text, in_filter=True)

        def follow(element: Any) -> Values:
            values = [element]
            for step in steps:
                values = step(values)
            return values

        return follow
    else:
        raise ValueError(f"unrecognized operand {text!r}")
    return lambda element: [literal]


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


# Steps --------------------------------------------------------------------------------------------------------------


def _field(name: str) -> _Step:
    def step(values: Values) -> Values:
        return [value[name] for value in values if isinstance(value, dict) and name in value]

    return step


def _wildcard(values: Values) -> Values:
    return [child for value in values for child in _children(value)]


def _descend(values: Values) -> Values:
    found = []
    pending = list(reversed(values))
    while pending:
        value = pending.pop()
        children = _children(value)
        if children:
            found.append(value)
            pending.extend(reversed(children))
    return found


def _element(index: int) -> _Step:
    def step(values: Values) -> Values:
        found = []
        for items in _lists(values):
            if not -len(items) <= index < len(items):
                raise _NoMatchError
            found.append(items[index])
        return found

    return step


def _elements(start: int | None, stop: int | None, step_by: int) -> _Step:
    def step(values: Values) -> Values:
        return [item for items in _lists(values) for item in items[start:stop:step_by]]

    return step


def _union(selections: list[_Step]) -> _Step:
    return lambda values: [value for selection in selections for value in selection(values)]


def _filter(accepts: Callable[[Any], bool]) -> _Step:
    return lambda values: [item for items in _lists(values) for item in items if accepts(item)]


def _exists(operand: Callable[[Any], Values]) -> Callable[[Any], bool]:
    return lambda element: bool(operand(element))


def _compare(
    left: Callable[[Any], Values], holds: Callable[[Any, Any], bool], right: Callable[[Any], Values]
) -> Callable[[Any], bool]:
    def accepts(element: Any) -> bool:
        lefts, rights = left(element), right(element)
        if not lefts or not rights:
            return False
        if len(lefts) > 1 or len(rights) > 1 or _sort(lefts[0]) != _sort(rights[0]):
            raise _NoMatchError
        return holds(lefts[0], rights[0])

    return accepts


def _sort(value: Any) -> type:
    """Return the class that a value compares within: booleans are no numbers, null and structures never compare."""
    if isinstance(value, bool):
        return bool
    if isinstance(value, int | float):
        return float
    if isinstance(value, str):
        return str
    raise _NoMatchError


def _lists(values: Values) -> list[list[Any]]:
    found = [value for value in values if value is not None]
    if not all(isinstance(value, list) for value in found):
        raise _NoMatchError
    return found


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
