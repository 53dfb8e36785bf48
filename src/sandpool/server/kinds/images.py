"""Image references, as far as the API cares: whether they name the moving tag."""

from __future__ import annotations

import re
from typing import Final

_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?P<digest>@[A-Za-z0-9+._-]+:[0-9a-fA-F]{32,})?"
)


def pull_policy(image: str) -> str:
    """When to pull an image whose author does not say: always if it is the latest, which may have moved."""
    match = _REFERENCE.fullmatch(image)
    if match is None:
        return "IfNotPresent"
    latest = match["tag"] == "latest" or (match["tag"] is None and match["digest"] is None)
    return "Always" if latest else "IfNotPresent"
