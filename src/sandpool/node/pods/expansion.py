"""``$(NAME)`` in commands, arguments and the values of variables, as Kubernetes expands it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# A dollar sign and what it introduces: another one, a name in parentheses, or anything else.
_REFERENCE: Final = re.compile(r"\$(?:\(([^)]*)\)|(.))", re.DOTALL)


def expand(text: str, values: Mapping[str, str]) -> str:
    """The text with every ``$(NAME)`` of a known name replaced and ``$$`` as ``$``. What is not known stays as it is,
    so that a shell in the container still sees it."""

    def replacement(match: re.Match[str]) -> str:
        name, other = match.groups()
        if other is not None:
            return "$" if other == "$" else match[0]
        return values.get(name, match[0])

    return _REFERENCE.sub(replacement, text)


def unknown(text: str, values: Mapping[str, str]) -> set[str]:
    """The names in a text that stay as they are."""
    return {match[1] for match in _REFERENCE.finditer(text) if match[1] is not None and match[1] not in values}
