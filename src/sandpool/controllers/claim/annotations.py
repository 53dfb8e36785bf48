"""What is noted in a claim's metadata: one patch with everything, written when the claim is ready and nobody waits.

Nothing here is needed to serve the claim, and the owner of the Sandbox says what counts, so if the patch is lost
nothing is: another pass finds what is missing and writes it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView


def annotation_patch(
    claim: ClaimView,
    *,
    first_observed: datetime | None = None,
    trace_context: str = "",
    adopted: str = "",
    is_reference_stale: bool = False,
    first_ready: str = "",
) -> Object | None:
    """The body of the merge patch; None if there is nothing to note.

    ``adopted`` is the sandbox the claim got from a pool, ``is_reference_stale`` means that the one it names is not to
    be had. ``first_ready`` is when it first was ready, or that nobody knows. What was noted is never overwritten,
    except the name of the sandbox, which also moves from the label it was in former times.
    """
    annotations: dict[str, str | None] = {}
    known = claim.annotations
    if first_observed is not None and not known.get(labels.CONTROLLER_FIRST_OBSERVED_AT):
        annotations[labels.CONTROLLER_FIRST_OBSERVED_AT] = precise(first_observed)
    if trace_context and not known.get(labels.TRACE_CONTEXT):
        annotations[labels.TRACE_CONTEXT] = trace_context
    if adopted and known.get(labels.SANDBOX_NAME) != adopted:
        annotations[labels.SANDBOX_NAME] = adopted
    elif is_reference_stale and not adopted and labels.SANDBOX_NAME in known:
        annotations[labels.SANDBOX_NAME] = None
    if first_ready and not known.get(labels.CLAIM_FIRST_READY_AT):
        annotations[labels.CLAIM_FIRST_READY_AT] = first_ready
    metadata: Object = {"annotations": annotations} if annotations else {}
    if labels.SANDBOX_NAME in claim.labels and (adopted or is_reference_stale):
        metadata["labels"] = {labels.SANDBOX_NAME: None}
    # A claim made again under the same name has a story of its own.
    return {"metadata": {"uid": claim.uid, **metadata}} if metadata else None


def precise(moment: datetime) -> str:
    """RFC 3339 with the fraction of the second, as Go's RFC3339Nano: without zeros at its end."""
    text = moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return text.rstrip("0").rstrip(".") + "Z"
