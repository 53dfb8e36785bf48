"""Expands ``$(NAME)`` in commands, arguments and variable values, as Kubernetes does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# A dollar sign followed by a name in parentheses or by any other character.
_REFERENCE: Final = re.compile(r"\$(?:\(([^)]*)\)|(.))", re.DOTALL)


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace every ``$(NAME)`` of a known name, and ``$$`` by ``$``. Unknown names stay, so that a shell in the
    container still sees them."""

    def replacement(match: re.Match[str]) -> str:
        name, other = match.groups()
        if other is not None:
            return "$" if other == "$" else match[0]
        return values.get(name, match[0])

    return _REFERENCE.sub(replacement, text)


def unknown(text: str, values: Mapping[str, str]) -> set[str]:
    """Return the names in a text that ``expand`` would leave as they are."""
    return {match[1] for match in _REFERENCE.finditer(text) if match[1] is not None and match[1] not in values}
