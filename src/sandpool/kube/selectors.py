"""Label and field selectors: parsed once, matched many times.

Parsing accepts exactly what kube-apiserver accepts, and raises ``BadRequest`` with its message for everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sandpool.kube.errors import BadRequest
from sandpool.kube.labels import label_key_errors, label_value_errors

_BINARY = "in, notin, =, ==, !=, gt, lt"
_END = ""
# Longest operator first; every other character except whitespace belongs to a word. As in Kubernetes, a NUL after a
# token is ignored, and a NUL before a token ends the selector.
_TOKEN = re.compile(r"[ \t\r\n]*(?:(!=|==|[=!(),><])|([^=!(),>< \t\r\n\0]+))\0?")
_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label selector. ``operator`` is one of in, notin, exists, !, >, <. ``key=value`` has ``in``
    with one value, and ``!`` requires that the label is absent."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if self.operator == "in":
            return value is not None and value in self.values
        if self.operator == "notin":
            return value is None or value not in self.values
        if self.operator == "exists":
            return value is not None
        if self.operator == "!":
            return value is None
        number = None if value is None else _integer(value)
        (bound,) = map(int, self.values)
        return number is not None and (number > bound if self.operator == ">" else number < bound)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must match. A selector without requirements matches everything."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        return cls(tuple(_Parser(text).requirements())) if text else _EVERYTHING

    @classmethod
    def from_object(cls, selector: Mapping[str, Any] | None) -> LabelSelector | None:
        """Convert a LabelSelector of a spec. None matches nothing; an empty selector matches everything."""
        if selector is None:
            return None
        requirements = [_requirement(key, "=", [value]) for key, value in (selector.get("matchLabels") or {}).items()]
        operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
        for expression in selector.get("matchExpressions") or ():
            operator = operators.get(expression.get("operator"))
            if operator is None:
                raise BadRequest(f'"{expression.get("operator", "")}" is not a valid label selector operator')
            requirements.append(_requirement(expression.get("key", ""), operator, expression.get("values") or []))
        return cls(tuple(requirements))

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        found = labels or {}
        return all(requirement.matches(found) for requirement in self.requirements)

    @property
    def empty(self) -> bool:
        return not self.requirements


_EVERYTHING = LabelSelector()


def _requirement(key: str, operator: str, values: Iterable[str]) -> Requirement:
    """Build a requirement. Raises one ``BadRequest`` with all errors of the key and the values."""
    values = list(values)
    problems = [f'key: Invalid value: "{key}": {"; ".join(found)}'] if (found := label_key_errors(key)) else []
    if operator in ("in", "notin") and not values:
        problems.append("values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty")
    if operator in ("exists", "!") and values:
        problems.append(
            f"values: Invalid value: {_go_strings(values)}: values set must be empty for exists and does not exist"
        )
    for place, value in enumerate(values):
        if operator in (">", "<") and _integer(value) is None:
            problems.append(
                f"values[{place}]: Invalid value: \"{value}\": for 'Gt', 'Lt' operators, the value must be an integer"
            )
        if found := label_value_errors(value):
            problems.append(f'values[{place}][{key}]: Invalid value: "{value}": {"; ".join(found)}')
    if problems:
        raise BadRequest(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
    return Requirement(key, {"=": "in", "==": "in", "!=": "notin"}.get(operator, operator), frozenset(values))


def _integer(text: str) -> int | None:
    """Parse a 64-bit integer; None if the text is not one."""
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _go_strings(values: list[str]) -> str:
    return "[" + ",".join(f'"{value}"' for value in values) + "]"


class _Parser:
    """Recursive-descent parser of label selectors. ``in`` and ``notin`` are operators only between a key and its
    values, and words elsewhere."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []  # (text, is a word)
        self._at = 0
        position = 0
        while match := _TOKEN.match(text, position):
            symbol, word = match.groups()
            self._tokens.append((symbol or word, symbol is None))
            position = match.end()
        self._tokens.append((_END, False))

    def _next(self) -> tuple[str, bool]:
        token = self._tokens[self._at]
        if self._at < len(self._tokens) - 1:
            self._at += 1
        return token

    def _peek(self) -> tuple[str, bool]:
        return self._tokens[self._at]

    def requirements(self) -> Iterable[Requirement]:
        token, word = self._peek()
        if token == _END:
            return
        if not word and token != "!":
            raise BadRequest(f"found '{token}', expected: !, identifier, or 'end of string'")
        while True:
            try:
                yield self._parse()
            except BadRequest as error:
                raise BadRequest(f"unable to parse requirement: {error.message}") from None
            token, word = self._next()
            if token == _END:
                return
            if token != ",":
                raise BadRequest(f"found '{token}', expected: ',' or 'end of string'")
            token, word = self._peek()
            if not word and token != "!":
                raise BadRequest(f"found '{token}', expected: identifier after ','")

    def _parse(self) -> Requirement:
        key, word = self._next()
        absent = key == "!"
        if absent:
            key, word = self._next()
        if not word:
            raise BadRequest(f"found '{key}', expected: identifier")
        if problems := label_key_errors(key):
            raise BadRequest(f'<nil>: Invalid value: "{key}": {"; ".join(problems)}')
        if absent:
            return Requirement(key, "!")
        if self._peek()[0] in (_END, ","):
            return Requirement(key, "exists")
        operator, _ = self._next()
        if operator in ("in", "notin"):
            return _requirement(key, operator, sorted(self._values()))
        if operator in ("=", "==", "!=", ">", "<"):
            return _requirement(key, operator, [self._value()])
        raise BadRequest(f"found '{operator}', expected: {_BINARY}")

    def _value(self) -> str:
        token, word = self._peek()
        if token in (_END, ","):
            return ""
        self._next()
        if not word:
            raise BadRequest(f"found '{token}', expected: identifier")
        return token

    def _values(self) -> set[str]:
        """Parse ``(a,b)``. A missing value is the empty string, so ``()`` and ``(,)`` both contain just that."""
        token, word = self._next()
        if token != "(":
            raise BadRequest(f"found '{token}' expected: '('")
        token, word = self._peek()
        if not word and token not in (",", ")"):
            raise BadRequest(f"found '{token}', expected: ',', ')' or identifier")
        values: set[str] = set()
        while True:
            token, word = self._peek()
            if word:
                self._next()
                values.add(token)
                token, word = self._peek()
                if token not in (",", ")"):
                    raise BadRequest(f"found '{token}', expected: ',' or ')'")
            elif token in (",", ")"):
                values.add("")
            else:
                raise BadRequest(f"found '{token}', expected: ',', or identifier")
            if self._next()[0] == ")":
                return values


@dataclass(frozen=True, slots=True)
class FieldTerm:
    field: str
    equal: bool
    value: str


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """All terms must match. The kind defines the fields of an object; a missing field is the empty string."""

    terms: tuple[FieldTerm, ...] = ()

    @classmethod
    def parse(cls, text: str) -> FieldSelector:
        terms = []
        for part in sorted(_split_terms(text)):
            if not part:
                continue
            match = _FIELD_TERM.match(part)
            if match is None:
                raise BadRequest(f"invalid selector: '{text}'; can't understand '{part}'")
            field, operator = match.groups()
            terms.append(FieldTerm(field, operator != "!=", _unescape(part[match.end() :])))
        return cls(tuple(terms))

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all((fields.get(term.field, "") == term.value) is term.equal for term in self.terms)

    @property
    def names(self) -> set[str]:
        return {term.field for term in self.terms}

    @property
    def empty(self) -> bool:
        return not self.terms

    def requires_exact(self, field: str) -> str | None:
        """The value that the selector requires for this field; None if it requires none."""
        for term in self.terms:
            if term.field == field and term.equal:
                return term.value
        return None


_FIELD_TERM = re.compile(r"(.*?)(!=|==|=)", re.DOTALL)


def _split_terms(text: str) -> list[str]:
    """Split at unescaped commas. Keeps the backslashes."""
    terms = [""]
    escaped = False
    for char in text:
        if char == "," and not escaped:
            terms.append("")
        else:
            terms[-1] += char
        escaped = char == "\\" and not escaped
    return terms


def _unescape(value: str) -> str:
    plain = []
    chars = iter(value)
    for char in chars:
        if char == "\\":
            follower = next(chars, "")
            if follower not in ("\\", ",", "="):
                raise BadRequest(f"invalid field selector: invalid escape sequence: \\{follower}")
            plain.append(follower)
        elif char in ",=":
            raise BadRequest(f"invalid field selector: unescaped character in value: {ord(char)}")
        else:
            plain.append(char)
    return "".join(plain)
