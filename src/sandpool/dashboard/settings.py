"""The settings of a dashboard process, as its parent sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sandpool.api.resource import Object


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """Settings of the dashboard of a home, besides its sockets: ``kubeconfig`` is the document, not a path, and
    ``not_before`` is in seconds since the epoch."""

    kubeconfig: Object
    title: str
    token: str
    not_before: float
    metrics_url: str | None = None
    read_only: bool = False
    allowed_hosts: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        return {
            "kubeconfig": self.kubeconfig,
            "title": self.title,
            "token": self.token,
            "notBefore": self.not_before,
            "metricsUrl": self.metrics_url,
            "readOnly": self.read_only,
            "allowedHosts": sorted(self.allowed_hosts),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            document["kubeconfig"],
            document["title"],
            document["token"],
            document["notBefore"],
            document["metricsUrl"],
            document["readOnly"],
            frozenset(document["allowedHosts"]),
        )
