"""``x-kubernetes-validations``: rules a schema states about values, and about how they may change.

A rule is a CEL expression over ``self`` and, if it is about a change, ``oldSelf``. The rules this project ships, and
the common ones that say a value must not change, are known by their text and run as plain Python. Any other text
needs the optional CEL library; without it ``compile_rules`` refuses, so that a rule is never silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sandpool.api import causes
from sandpool.api.causes import Cause
from sandpool.api.resource import Object
from sandpool.api.schema.listtypes import correlator
from sandpool.api.schema.shape import MISSING, Rule, Shape

# Whether a value (and what it replaces, None if there is nothing) is as the rule says.
Program = Callable[[Any, Any], bool]


class RulesUnsupported(ValueError):
    """A rule cannot be evaluated: the CEL library is not installed, or the rule is not valid."""


class RuleError(Exception):
    """A rule could not be evaluated for this value; the text says why."""


def immutable_field(name: str) -> str:
    """The text of the rule that a field, once absent or present with a value, stays so."""
    return f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"


_IMMUTABLE_FIELD: Final = re.compile(
    re.escape(immutable_field("NAME")).replace("NAME", r"(?P<name>\w+)", 1).replace("NAME", r"(?P=name)")
)


def _native(text: str) -> Program | None:
    """The rules known by their text."""
    if text in ("self == oldSelf", "oldSelf == self"):
        return lambda new, old: bool(new == old)
    match = _IMMUTABLE_FIELD.fullmatch(text)
    if match is None:
        return None
    name = match["name"]

    def unchanged(new: Any, old: Any) -> bool:
        if type(new) is not dict or type(old) is not dict:
            return True
        after, before = new.get(name, MISSING), old.get(name, MISSING)
        return after is before or after == before

    return unchanged


_LITERALS: Final = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')


@dataclass(frozen=True, slots=True)
class _Compiled:
    rule: Rule
    program: Program
    message: Callable[[Any, Any], str]
    transition: bool  # the rule is about a change and says nothing about a value that replaces none
    settled_by_identity: bool  # nothing is wrong with a value that replaces itself

    def cause(self, path: str, shape: Shape, value: Any, old: Any) -> Cause | None:
        """Return the error for a value that violates the rule."""
        try:
            if self.program(value, old):
                return None
        except RuleError as error:
            text = f"{error} evaluating rule: {self.rule.message.strip() or self.rule.rule.strip()}"
            return causes.invalid(path, shape.type, text)
        where = path + self.rule.field_path if path else self.rule.field_path.lstrip(".")
        detail = self.message(value, old)
        if self.rule.reason == causes.FORBIDDEN:
            return causes.forbidden(where, detail)
        if self.rule.reason == causes.REQUIRED:
            return causes.required(where, detail)
        whole = shape.type in ("object", "array")
        if self.rule.reason == causes.DUPLICATE:
            return Cause(
                where, causes.DUPLICATE, "Duplicate value" if whole else f"Duplicate value: {causes.shown(value)}"
            )
        return (
            Cause(where, causes.INVALID, f"Invalid value: {detail}") if whole else causes.invalid(where, value, detail)
        )


def _compile_rule(rule: Rule, shape: Shape) -> _Compiled:
    text = rule.rule.strip()
    default = rule.message.strip() or f"failed rule: {text}"
    compares = "oldSelf" in _LITERALS.sub("", text)
    transition = compares and not rule.optional_old_self
    program = None if rule.optional_old_self else _native(text)
    settled = program is not None or not compares

    def message(value: Any, old: Any) -> str:
        return default

    if program is None or rule.message_expression:
        from sandpool.api.schema import cel  # the library is optional, and loading it takes a while

        if program is None:
            program = cel.compile_program(text, shape, optional_old_self=rule.optional_old_self)
        if rule.message_expression:
            message_of = cel.compile_message(rule.message_expression, shape, default)
            return _Compiled(rule, program, message_of, transition, settled)
    return _Compiled(rule, program, message, transition, settled)


@dataclass(slots=True)
class _Node:
    """The rules at one place of a schema and below it."""

    shape: Shape
    rules: list[_Compiled]
    fields: dict[str, _Node]
    values: _Node | None
    items: _Node | None

    def settled_by_identity(self) -> bool:
        below = [*self.fields.values(), *(each for each in (self.values, self.items) if each is not None)]
        return all(rule.settled_by_identity for rule in self.rules) and all(
            each.settled_by_identity() for each in below
        )


def _collect(shape: Shape, above: tuple[Shape, ...] = ()) -> _Node | None:
    """None if there are no rules in or below the shape. Structural schemas have no cycles; one is not followed."""
    if shape in above:
        return None
    above = (*above, shape)
    stated = (*shape.rules, *(rule for each in shape.all_of for rule in each.rules))
    node = _Node(
        shape,
        [_compile_rule(rule, shape) for rule in stated],
        {name: inner for name, each in shape.properties.items() if (inner := _collect(each, above))},
        _collect(shape.additional, above) if shape.additional is not None else None,
        _collect(shape.items, above) if shape.items is not None else None,
    )
    return node if node.rules or node.fields or node.values or node.items else None


# Adds the causes found in a value: (path, value, old, the parent and what it replaces, causes).
_Walk = Callable[[str, Any, Any, tuple[Any, Any], list[Cause]], None]


def compile_rules(shape: Shape) -> Callable[[Object, Object | None], list[Cause]] | None:
    """The causes a shape's rules find in a new object that replaces an old one; None if the shape has no rules.
    Raises RulesUnsupported. Rules are to be asked only about objects that fit the rest of the schema."""
    node = _collect(shape)
    if node is None:
        return None
    walk = _walk(node)

    def find(new: Object, old: Object | None) -> list[Cause]:
        found: list[Cause] = []
        before = MISSING if old is None else old
        walk("", new, before, (new, before), found)
        return found

    return find


def _walk(node: _Node) -> _Walk:
    shape, rules = node.shape, node.rules
    fields = {name: _walk(inner) for name, inner in node.fields.items()}
    values = _walk(node.values) if node.values is not None else None
    items = _walk(node.items) if node.items is not None else None
    settled = node.settled_by_identity()
    correlate = correlator(shape)

    def walk(path: str, value: Any, old: Any, parent: tuple[Any, Any], found: list[Cause]) -> None:
        if value is None or (value is old and settled):
            return
        for rule in rules:
            if rule.transition and old is MISSING:
                continue
            cause = rule.cause(path, shape, value, None if old is MISSING else old)
            if cause is not None and (rule.transition or not _unchanged(value, old, parent)):
                found.append(cause)
        if type(value) is dict:
            before = old if type(old) is dict else {}
            for name, inner in fields.items():
                if name in value:
                    where = f"{path}.{name}" if path else name
                    inner(where, value[name], before.get(name, MISSING), (value, old), found)
            if values is not None:
                for key, item in value.items():
                    values(f"{path}[{key}]", item, before.get(key, MISSING), (value, old), found)
        elif type(value) is list and items is not None:
            previous = correlate(old if type(old) is list else [])
            for index, item in enumerate(value):
                items(f"{path}[{index}]", item, previous(item), (value, old), found)

    return walk


def _unchanged(value: Any, old: Any, parent: tuple[Any, Any]) -> bool:
    """A value that was there before may stay, even if a rule that forbids it came later."""
    new_parent, old_parent = parent
    return bool(value == old if old is not MISSING else new_parent == old_parent)
