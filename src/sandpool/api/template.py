"""The SandboxTemplate: the template for the sandboxes of a pool."""

from __future__ import annotations

from typing import Final

from sandpool.api.sandbox_spec import Profile, sandbox_spec_properties
from sandpool.api.schema.fields import Schema, choice, kubernetes_type, resource, sequence, structure

MANAGED: Final = "Managed"
UNMANAGED: Final = "Unmanaged"

ALLOWED: Final = "Allowed"
OVERRIDES: Final = "Overrides"
DISALLOWED: Final = "Disallowed"

COLUMNS: Final = ()


def schema(profile: Profile = "full") -> Schema:
    policy = structure(
        "The allowed traffic of the sandboxes. Both directions are always restricted to the listed rules.",
        {
            direction.lower(): sequence(
                f"Rules for traffic {way}.", kubernetes_type(f"io.k8s.api.networking.v1.NetworkPolicy{direction}Rule")
            )
            for direction, way in (("Ingress", "to the sandboxes"), ("Egress", "from the sandboxes"))
        },
    )
    spec = structure(
        "The spec of the sandboxes.",
        {
            **sandbox_spec_properties(profile),
            "networkPolicy": policy,
            "networkPolicyManagement": choice(
                "Whether the controller manages a NetworkPolicy for the sandboxes of this template.",
                MANAGED,
                UNMANAGED,
                default=MANAGED,
            ),
            "envVarsInjectionPolicy": choice(
                "Whether a claim may add environment variables (Allowed) or also replace them (Overrides).",
                ALLOWED,
                OVERRIDES,
                DISALLOWED,
                default=DISALLOWED,
            ),
            "volumeClaimTemplatesPolicy": choice(
                "Whether a claim may add volume claim templates (Allowed) or also replace them (Overrides).",
                DISALLOWED,
                ALLOWED,
                OVERRIDES,
                default=DISALLOWED,
            ),
        },
        ["podTemplate"],
    )
    return resource("A template for sandboxes.", spec)
