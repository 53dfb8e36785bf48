"""The settings of a dashboard process, as its parent sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """Settings of the dashboard of a home, besides its sockets. ``not_before`` is in seconds since the epoch."""

    kubeconfig: Path
    title: str
    token: str
    not_before: float
    metrics_url: str | None = None
    audit_log: Path | None = None
    read_only: bool = False
    allowed_hosts: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        return {
            "kubeconfig": str(self.kubeconfig),
            "title": self.title,
            "token": self.token,
            "notBefore": self.not_before,
            "metricsUrl": self.metrics_url,
            "auditLog": None if self.audit_log is None else str(self.audit_log),
            "readOnly": self.read_only,
            "allowedHosts": sorted(self.allowed_hosts),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        audit_log = document["auditLog"]
        return cls(
            Path(document["kubeconfig"]),
            document["title"],
            document["token"],
            document["notBefore"],
            document["metricsUrl"],
            None if audit_log is None else Path(audit_log),
            document["readOnly"],
            frozenset(document["allowedHosts"]),
        )
