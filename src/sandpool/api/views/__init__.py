"""Typed views: the fields of an object that our code reads, decoded once and compared as a whole.

A view is made from a decoded object and never turned back into one. Controllers write patches of the fields they own,
or new objects, so the fields that a view leaves out are never lost.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.views.builtin import NamespaceView, NetworkPolicyView, ServiceView, VolumeClaimView
from sandpool.api.views.claim import ClaimView, Lifecycle
from sandpool.api.views.metadata import Owner, View, adopted_by, controller_reference
from sandpool.api.views.node import NodeView
from sandpool.api.views.pod import PodView, Scheduling
from sandpool.api.views.sandbox import SandboxStatus, SandboxView
from sandpool.api.views.sharing import PerPart
from sandpool.api.views.template import TemplateView
from sandpool.api.views.times import parse_time
from sandpool.api.views.warmpool import WarmPoolStatus, WarmPoolView

__all__ = [
    "ClaimView",
    "Lifecycle",
    "NamespaceView",
    "NetworkPolicyView",
    "NodeView",
    "Owner",
    "PodView",
    "SandboxStatus",
    "SandboxView",
    "Scheduling",
    "ServiceView",
    "TemplateView",
    "View",
    "VolumeClaimView",
    "WarmPoolStatus",
    "WarmPoolView",
    "adopted_by",
    "claim_view",
    "controller_reference",
    "parse_time",
    "pod_view",
    "sandbox_view",
]

# The embedded API hands the same object to all watches of its process and to the writer. A batch of events is taken in
# by one cache after the other, so about two batches are remembered.
_RECENT: Final = 256

#: The view of an object, made once for all caches of the process and for the writer.
claim_view: Final = PerPart(ClaimView.from_object, _RECENT)
pod_view: Final = PerPart(PodView.from_object, _RECENT)
sandbox_view: Final = PerPart(SandboxView.from_object, _RECENT)
