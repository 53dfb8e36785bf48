"""Errors are matched by type, code or cause, and never by their text: texts differ between versions and languages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import sandpool

ROOT: Final = Path(sandpool.__file__).parent

#: Variables, attributes and keys that hold the text of an error, a condition or an event, or the output of a tool.
TEXTS: Final = frozenset({"message", "note", "stderr", "strerror", "errors", "reason_text", "advice"})
#: Methods that return the same text in another form.
FORMS: Final = frozenset(
    {"casefold", "decode", "encode", "lower", "lstrip", "removeprefix", "removesuffix", "rstrip", "splitlines", "strip"}
    | {"upper"}
)
#: Methods that look for something in a text.
SEARCHES: Final = frozenset({"count", "endswith", "find", "index", "rfind", "rindex", "startswith"})
PATTERNS: Final = frozenset({"findall", "finditer", "fullmatch", "match", "search"})

#: Matches that are allowed, and why.
EXCEPTIONS: Final = {
    ("explain/blockers.py", "'exceeded quota' in message"): "kube-apiserver gives no cause with this error",
    ("sdk/code.py", "'stream' not in message"): "a message is a JSON object here",
}


def is_text(node: ast.expr, errors: set[str]) -> bool:
    """Whether an expression is the text of an error; ``errors`` are the names of caught exceptions."""
    match node:
        case ast.Call(func=ast.Attribute(value=text, attr=method)) if method in FORMS:
            return is_text(text, errors)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=key), *_]):
            return key in TEXTS
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
            return name in errors or name == "error"
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key in TEXTS
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="args")):
            return name in errors
        case ast.BoolOp(values=values):
            return any(is_text(value, errors) for value in values)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in TEXTS
    return False


def matches(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions that look for something in the text of an error. Two texts may be compared with each other."""
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]) if is_text(right, errors):
                yield node
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                if is_text(left, errors) and not is_text(right, errors):
                    yield node
            case ast.Call(func=ast.Attribute(value=text, attr=method)) if method in SEARCHES and is_text(text, errors):
                yield node
            case ast.Call(func=ast.Attribute(attr=method), args=args) if method in PATTERNS:
                if any(is_text(argument, errors) for argument in args):
                    yield node


def test_errors_are_not_matched_by_text() -> None:
    found = {
        (str(path.relative_to(ROOT)), ast.unparse(node))
        for path in ROOT.rglob("*.py")
        for node in matches(ast.parse(path.read_text()))
    }
    unexpected = found - EXCEPTIONS.keys()
    assert not unexpected, "match the type, the code or the cause:\n" + "\n".join(map(": ".join, sorted(unexpected)))
    assert found == EXCEPTIONS.keys(), "an exception is not needed any more"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("'image' in event.note.lower()", True),
        ("MISSING not in ready['message']", True),
        ("(status.get('message') or '').startswith('x')", True),
        ("any(text in stderr.decode() for text in TEXTS)", True),
        ("re.search('full', error.strerror)", True),
        ("PATTERN.match(str(error))", True),
        ("message == READY", True),
        ("try: f()\nexcept ValueError as why:\n    x = 'y' in str(why) or why.args[0] == 'z'", True),
        ("before['message'] == after['message']", False),
        ("str(error).partition('\\n')[0]", False),
        ("error.code == 409", False),
        ("reason in REASONS", False),
        ("str(path).startswith('/')", False),
    ],
)
def test_matches_of_texts_are_found(code: str, found: bool) -> None:
    assert bool(list(matches(ast.parse(code)))) == found
