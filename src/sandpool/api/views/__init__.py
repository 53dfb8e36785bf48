"""Typed views: the fields of an object that our code reads, decoded once and compared as a whole.

A view is made from a decoded object and never turned back into one. Controllers write patches of the fields they own,
or new objects, so the fields that a view leaves out are never lost.
"""

from __future__ import annotations

from sandpool.api.views.claim import ClaimView, Lifecycle
from sandpool.api.views.metadata import Owner, View, adopted_by, controller_reference
from sandpool.api.views.network_policy import NetworkPolicyView
from sandpool.api.views.node import NodeView
from sandpool.api.views.pod import PodView, Scheduling
from sandpool.api.views.sandbox import SandboxStatus, SandboxView
from sandpool.api.views.service import ServiceView
from sandpool.api.views.template import TemplateView
from sandpool.api.views.times import parse_time
from sandpool.api.views.volume_claim import VolumeClaimView
from sandpool.api.views.warmpool import WarmPoolStatus, WarmPoolView

__all__ = [
    "ClaimView",
    "Lifecycle",
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
    "controller_reference",
    "parse_time",
]
