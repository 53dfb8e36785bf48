"""Where a claim says which sandbox it has. None of it is proof: the owner of the Sandbox is."""

from __future__ import annotations

from sandpool.api import labels
from sandpool.api.views import ClaimView


def assigned_name(claim: ClaimView) -> str:
    """The sandbox that the claim's metadata name; it was a label once."""
    return claim.annotations.get(labels.SANDBOX_NAME) or claim.labels.get(labels.SANDBOX_NAME) or ""


def referenced_names(claim: ClaimView) -> tuple[str, ...]:
    """The sandboxes to look for in the claim's namespace, best first, besides those the claim owns."""
    names = (claim.sandbox_name, assigned_name(claim), claim.name)
    return tuple(dict.fromkeys(name for name in names if name))
