"""What to make of an adoption that the API refused: somebody has written the sandbox since we looked, or deleted it.

It is looked at again, at the API itself. Either it is the claim's already (the answer to our own write was lost), or it
can still be had, then the same sandbox is adopted again; or it is lost. Never is another one taken in the same pass: a
claim that moves on from a sandbox it may own after all ends up with two.
"""

from __future__ import annotations

from sandpool.api.views import ClaimView, SandboxView
from sandpool.controllers.claim.assignment.candidates import is_pooled, refusal
from sandpool.controllers.claim.errors import ClaimError, adoption_conflict


def is_adopted(claim: ClaimView, name: str, fresh: SandboxView | None) -> bool:
    """Whether the sandbox is the claim's already; if not, it is to be adopted again as it is now. Raises if it is lost.
    ``fresh`` is what the API has, None if it has none."""
    if fresh is None:
        raise adoption_conflict(f"sandbox {name} deleted before adoption completed")
    if fresh.controlled_by(claim):
        return True
    if not is_pooled(fresh):
        raise adoption_conflict(f"sandbox {name} is no longer pool-owned and not controlled by claim {claim.name}")
    if why := refusal(fresh, claim):
        raise adoption_conflict(f"sandbox {name} is no longer adoptable by claim {claim.name}: {why}")
    return False


def gave_up(claim: ClaimView, name: str) -> ClaimError:
    """The sandbox was written by others every time we tried. It may still be had, so nothing is let go."""
    return adoption_conflict(f"adopting sandbox {name} for claim {claim.name} (conflicting concurrent write)")


def outdated(claim: ClaimView, name: str) -> ClaimError:
    """The sandbox may still be had, but perhaps not by this claim: what its pool gives away has changed."""
    return adoption_conflict(f"sandbox {name} was written while the pool of claim {claim.name} changed")
