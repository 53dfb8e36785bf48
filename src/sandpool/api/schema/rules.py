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

    def cause(self, path: str, shape: Shape, value: Any, old: Any) -> Cause | None:
        """What the rule finds wrong with a value."""
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
    transition = "oldSelf" in _LITERALS.sub("", text) and not rule.optional_old_self
    program = None if rule.optional_old_self else _native(text)

    def message(value: Any, old: Any) -> str:
        return default

    if program is None or rule.message_expression:
        from sandpool.api.schema import cel  # the library is optional, and loading it takes a while

        if program is None:
            program = cel.compile_program(text, shape, optional_old_self=rule.optional_old_self)
        if rule.message_expression:
            return _Compiled(rule, program, cel.compile_message(rule.message_expression, shape, default), transition)
    return _Compiled(rule, program, message, transition)


# Adds the causes found in a value: (path, value, old, the parent and what it replaces, causes).
_Walk = Callable[[str, Any, Any, tuple[Any, Any], list[Cause]], None]


def compile_rules(shape: Shape) -> Callable[[Object, Object | None], list[Cause]] | None:
    """The causes a shape's rules find in a new object that replaces an old one; None if the shape has no rules.
    Raises RulesUnsupported. Rules are to be asked only about objects that fit the rest of the schema."""
    walk = _compile_walk(shape, {})
    if walk is None:
        return None
    root = walk

    def find(new: Object, old: Object | None) -> list[Cause]:
        found: list[Cause] = []
        before = MISSING if old is None else old
        root("", new, before, (new, before), found)
        return found

    return find


def _compile_walk(shape: Shape, seen: dict[int, None]) -> _Walk | None:
    """None if there are no rules in or below the shape. Structural schemas have no cycles; one is not followed."""
    if id(shape) in seen:
        return None
    seen = {**seen, id(shape): None}
    rules = [
        _compile_rule(rule, shape) for rule in (*shape.rules, *(rule for each in shape.all_of for rule in each.rules))
    ]
    fields = {name: inner for name, each in shape.properties.items() if (inner := _compile_walk(each, seen))}
    values = _compile_walk(shape.additional, seen) if shape.additional is not None else None
    items = _compile_walk(shape.items, seen) if shape.items is not None else None
    if not (rules or fields or values or items):
        return None
    correlate = correlator(shape)

    def walk(path: str, value: Any, old: Any, parent: tuple[Any, Any], found: list[Cause]) -> None:
        if value is None:
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
