"""Rules in the full Common Expression Language, evaluated by the optional library ``cel-expr-python``.

The library knows CEL but not Kubernetes: that a field of format date-time is a timestamp, and that names which are no
identifiers are spelled differently in rules (``self.foo__dash__bar``), is arranged here.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final, Protocol

from sandpool.api.schema.rules import Program, RuleError, RulesUnsupported
from sandpool.api.schema.shape import Shape

Bind = Callable[[Any], Any]

_RESERVED: Final = re.compile(
    "true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return|var|void|"
    "while"
)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Expression(Protocol):
    """A compiled expression of the library."""

    def eval(self, *, data: dict[str, Any]) -> Any: ...


@cache
def _environment() -> Any:
    try:
        cel = import_module("cel_expr_python.cel")
        extensions = [
            getattr(import_module(f"cel_expr_python.ext.ext_{name.lower()}"), f"Ext{name}")()
            for name in ("Strings", "Math", "Optional")
        ]
    except ImportError:
        raise RulesUnsupported(
            "x-kubernetes-validations rules other than immutability need a CEL library: install sandpool[cel]"
        ) from None
    return cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN}, extensions=extensions)


def compile_program(text: str, shape: Shape, *, optional_old_self: bool = False) -> Program:
    """The program of a rule. With ``optional_old_self``, ``oldSelf`` is an optional value, empty on create."""
    if optional_old_self:
        # The library cannot be given an optional value, but an expression can make one of what it is given.
        text = f"[size(oldSelf) > 0 ? optional.of(oldSelf[0]) : optional.none()].all(oldSelf, {text})"
    expression = _compile(text)
    bind = _bind(shape)

    def program(new: Any, old: Any) -> bool:
        before = ([] if old is None else [bind(old)]) if optional_old_self else None if old is None else bind(old)
        return _evaluate(expression, bind(new), before) is True

    return program


def compile_message(text: str, shape: Shape, default: str) -> Callable[[Any, Any], str]:
    """A message made by an expression; the default one where the expression has no usable result."""
    expression = _compile(text)
    bind = _bind(shape)

    def message(new: Any, old: Any) -> str:
        try:
            result = _evaluate(expression, bind(new), None if old is None else bind(old))
        except RuleError:
            return default
        made = result.strip() if isinstance(result, str) else ""
        return made if made and "\n" not in made else default

    return message


def _compile(text: str) -> _Expression:
    environment = _environment()
    try:
        expression: _Expression = environment.compile(text)
    except Exception as error:  # noqa: BLE001 - the library has no narrower type for what is wrong with a rule
        raise RulesUnsupported(f"rule {text!r} is not supported: {error}") from None
    return expression


def _evaluate(expression: _Expression, new: Any, old: Any) -> Any:
    try:
        result = expression.eval(data={"self": new, "oldSelf": old})
    except Exception as error:  # noqa: BLE001 - as above
        raise RuleError(str(error)) from None
    value = result.plain_value()
    if result.type().name() == "*error*" or isinstance(value, Exception):
        raise RuleError(str(value))
    return value


def _bind(shape: Shape) -> Bind:
    """How values of a shape are given to the library; most as they are."""
    return _binding(shape) or (lambda value: value)


def _binding(shape: Shape) -> Bind | None:
    if shape.type == "string" and shape.format == "date-time":
        return _timestamp
    if shape.items is not None:
        inner = _binding(shape.items)
        return (
            None if inner is None else lambda value: [inner(item) for item in value] if type(value) is list else value
        )
    if shape.additional is not None:
        each = _binding(shape.additional)
        if each is None:
            return None
        return lambda value: {k: each(v) for k, v in value.items()} if type(value) is dict else value
    fields = {name: binding for name, inner in shape.properties.items() if (binding := _binding(inner)) is not None}
    names = {name: escaped for name in shape.properties if (escaped := escape(name)) != name}
    if not fields and not names:
        return None

    def bind(value: Any) -> Any:
        if type(value) is not dict:
            return value
        return {names.get(k, k): fields[k](v) if k in fields else v for k, v in value.items()}

    return bind


def _timestamp(value: Any) -> Any:
    try:
        return datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value


def escape(name: str) -> str:
    """The name of a field as rules spell it."""
    if _RESERVED.fullmatch(name):
        return f"__{name}__"
    if _IDENTIFIER.fullmatch(name) and "__" not in name:
        return name
    escaped = name.replace("__", "__underscores__")
    for char, word in ((".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        escaped = escaped.replace(char, word)
    return escaped
