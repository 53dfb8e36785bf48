"""Small resource requests for containers that set limits and no requests.

Kubernetes takes the limit as the request of such a container. On one machine two sandboxes that may use all of its
cores would then exclude each other, although both are idle most of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandpool.api.quantity import parse

_SMALL: Final = {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "64Mi"}


def requests_within(limits: Mapping[str, str]) -> dict[str, str]:
    """Return a request for each of the limits that may exceed its request, none larger than the limit. Other resources
    are left out: the API requires their requests to be the limits. So are limits that are no quantities, which the API
    reports."""
    return {name: _smaller(small, limits[name]) for name, small in _SMALL.items() if _is_quantity(limits.get(name))}


def _smaller(small: str, limit: str) -> str:
    return limit if parse(limit).billionths < parse(small).billionths else small


def _is_quantity(amount: object) -> bool:
    if not isinstance(amount, (str, int, float)):
        return False
    try:
        parse(amount)
    except ValueError:
        return False
    return True
