"""What controllers of former times left behind: a NetworkPolicy for every claim. Templates have them now.

It is looked for in the cache, which is there for the policies of templates anyway, so that a claim without one, as all
are today, costs no request.
"""

from __future__ import annotations

from sandpool.api.kinds import NETWORK_POLICY
from sandpool.api.views import ClaimView, NetworkPolicyView
from sandpool.controllers.writer import Delete


def policy_to_delete(claim: ClaimView, found: NetworkPolicyView | None) -> Delete | None:
    """``found`` is the policy of the name that was reserved for the claim's. One that is not the claim's own stays."""
    if found is None or found.deleting or not found.controlled_by(claim):
        return None
    return Delete(NETWORK_POLICY, found.name, found.uid)
