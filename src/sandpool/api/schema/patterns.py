"""Regular expressions written for Go, run by Python.

Schemas come with RE2 patterns. The syntaxes agree except for a few spellings that are translated here; a
pattern that Python cannot express is rejected when the schema is compiled, never silently ignored.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_POSIX_CLASSES: Final = {
    "[:alnum:]": "0-9A-Za-z",
    "[:alpha:]": "A-Za-z",
    "[:ascii:]": "\\x00-\\x7F",
    "[:blank:]": "\\t ",
    "[:cntrl:]": "\\x00-\\x1F\\x7F",
    "[:digit:]": "0-9",
    "[:graph:]": "!-~",
    "[:lower:]": "a-z",
    "[:print:]": " -~",
    "[:punct:]": "!-/:-@\\[-`{-~",
    "[:space:]": "\\t\\n\\v\\f\\r ",
    "[:upper:]": "A-Z",
    "[:word:]": "0-9A-Za-z_",
    "[:xdigit:]": "0-9A-Fa-f",
}
_TOKEN: Final = re.compile(r"\\.|\[:\^?\w+:\]|\[\^?\]?|\]|\$|\(\?[a-zA-Z]+\)|.", re.DOTALL)


class UnsupportedPattern(ValueError):
    """A pattern that is no regular expression, or uses what only Go has (character classes by Unicode name)."""


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The pattern for ``search``: Go's meaning of ``$`` (the very end), ``\\z`` and ASCII classes."""
    flags = re.ASCII  # \d, \w and \s are ASCII in RE2
    translated: list[str] = []
    in_class = False
    for token in _TOKEN.findall(pattern):
        if token == "\\z":
            token = "\\Z"
        elif not in_class and token.startswith("(?") and token.endswith(")"):
            if translated:
                raise UnsupportedPattern(f"flags may only stand at the beginning of a pattern: {pattern}")
            if "m" in token or "U" in token:
                raise UnsupportedPattern(f"flags m and U of a pattern are not supported: {pattern}")
        elif in_class and token in _POSIX_CLASSES:
            token = _POSIX_CLASSES[token]
        elif in_class:
            in_class = token != "]"
            if token == "[":
                token = "\\["  # Python warns about what may once become a nested set
        elif token == "$":
            token = "\\Z"
        elif token.startswith("["):
            in_class = True
        translated.append(token)
    try:
        return re.compile("".join(translated), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedPattern(f"pattern {pattern!r} is not supported: {error}") from None
