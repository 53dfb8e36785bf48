"""Rules in the full Common Expression Language, evaluated by the optional library ``cel-expr-python``.

The library implements CEL without the extensions of Kubernetes. Field names that are no identifiers are therefore
escaped before evaluation, as rules spell them (``self.foo__dash__bar``). These extensions are missing: the functions of
Kubernetes (quantities, URLs, addresses, ``find``), cost limits, and typed times. ``timestamp(self.time)`` has the same
result here and on a cluster.
"""

from __future__ import annotations

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
_MISSING_KEY: Final = re.compile(r'Key not found in map : "(.*)"')
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
    """Compile the program of a rule. With ``optional_old_self``, ``oldSelf`` is an optional value, empty on create."""
    if optional_old_self:
        # The library accepts no optional value as input, so the expression builds one from a list.
        text = f"[size(oldSelf) > 0 ? optional.of(oldSelf[0]) : optional.none()].all(oldSelf, {text})"
    expression = _compile(text)
    bind = _bind(shape)

    def program(new: Any, old: Any) -> bool:
        before = ([] if old is None else [bind(old)]) if optional_old_self else None if old is None else bind(old)
        return _evaluate(expression, bind(new), before) is True

    return program


def compile_message(text: str, shape: Shape, default: str) -> Callable[[Any, Any], str]:
    """Compile a message expression. Its result must be one line of text; otherwise the message is ``default``."""
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
    except Exception as error:  # noqa: BLE001 - the library raises no narrower type for an invalid rule
        raise RulesUnsupported(f"rule {text!r} is not supported: {error}") from None
    return expression


def _evaluate(expression: _Expression, new: Any, old: Any) -> Any:
    try:
        result = expression.eval(data={"self": new, "oldSelf": old})
    except Exception as error:  # noqa: BLE001 - as above
        raise RuleError(str(error)) from None
    value = result.plain_value()
    if result.type().name() == "ERROR":
        missing = _MISSING_KEY.search(str(value))
        raise RuleError(f"no such key: {missing[1]}" if missing else str(value).split(": ", 1)[-1])
    return value


def _bind(shape: Shape) -> Bind:
    """Return the function that escapes the field names of a value; the identity if no name needs that."""
    return _binding(shape) or (lambda value: value)


def _binding(shape: Shape) -> Bind | None:
    inner = _binding(shape.items) if shape.items is not None else None
    if inner is not None:
        return lambda value: [inner(item) for item in value] if type(value) is list else value
    each = _binding(shape.additional) if shape.additional is not None else None
    if each is not None:
        return lambda value: {k: each(v) for k, v in value.items()} if type(value) is dict else value
    fields = {name: binding for name, field in shape.properties.items() if (binding := _binding(field)) is not None}
    names = {name: escaped for name in shape.properties if (escaped := escape(name)) != name}
    if not fields and not names:
        return None

    def bind(value: Any) -> Any:
        if type(value) is not dict:
            return value
        return {names.get(k, k): fields[k](v) if k in fields else v for k, v in value.items()}

    return bind


def escape(name: str) -> str:
    """Return the name of a field as rules spell it."""
    if _RESERVED.fullmatch(name):
        return f"__{name}__"
    if _IDENTIFIER.fullmatch(name) and "__" not in name:
        return name
    escaped = name.replace("__", "__underscores__")
    for char, word in ((".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        escaped = escaped.replace(char, word)
    return escaped
