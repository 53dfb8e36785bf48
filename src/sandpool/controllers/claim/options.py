"""What the operator of the controller decides for all claims."""

from __future__ import annotations

from dataclasses import dataclass

from sandpool.controllers.claim.metadata import DEFAULT_LABEL_DOMAINS


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    workers: int = 64  # claims that are looked at at once
    annotation_workers: int = 4  # claims on which something is noted at once, when they have been served
    label_domains: tuple[str, ...] = DEFAULT_LABEL_DOMAINS  # claims may bring labels and annotations of these
    annotate_observability: bool = True  # note on a claim when it was first seen, and its trace
