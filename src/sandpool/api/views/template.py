"""View of a SandboxTemplate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandpool.api.resource import SharedObject
from sandpool.api.sandbox_spec import unmounted_volumes
from sandpool.api.template import UNMANAGED
from sandpool.api.views.metadata import View, metadata_of


@dataclass(frozen=True, slots=True)
class TemplateView(View):
    # Shared with the object; must be copied before a change.
    pod_template: SharedObject
    volume_claim_templates: Sequence[SharedObject]
    service: bool | None
    network_policy: SharedObject | None  # None: the default policy
    network_policy_management: str
    env_vars_injection_policy: str
    volume_claim_templates_policy: str

    @property
    def network_managed(self) -> bool:
        """Whether the controller manages a NetworkPolicy for the sandboxes. An empty value means Managed."""
        return self.network_policy_management != UNMANAGED

    @property
    def unmounted_volumes(self) -> tuple[str, ...]:
        """Names of the volumes that no container mounts: files that are written there are not on the volume."""
        return unmounted_volumes(self.pod_template, self.volume_claim_templates)

    @classmethod
    def from_object(cls, obj: SharedObject) -> TemplateView:
        spec = obj.get("spec") or {}
        return cls(
            **metadata_of(obj),
            pod_template=spec.get("podTemplate") or {},
            volume_claim_templates=spec.get("volumeClaimTemplates") or [],
            service=spec.get("service"),
            network_policy=spec.get("networkPolicy"),
            network_policy_management=spec.get("networkPolicyManagement") or "",
            env_vars_injection_policy=spec.get("envVarsInjectionPolicy") or "",
            volume_claim_templates_policy=spec.get("volumeClaimTemplatesPolicy") or "",
        )
