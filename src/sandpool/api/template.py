"""The SandboxTemplate: what the sandboxes of a pool are made from."""

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
        "The traffic of the sandboxes, both directions always being restricted to what is listed.",
        {
            direction.lower(): sequence(
                f"What is allowed {way}.", kubernetes_type(f"io.k8s.api.networking.v1.NetworkPolicy{direction}Rule")
            )
            for direction, way in (("Ingress", "in"), ("Egress", "out"))
        },
    )
    spec = structure(
        "What the sandboxes look like.",
        {
            **sandbox_spec_properties(profile),
            "networkPolicy": policy,
            "networkPolicyManagement": choice(
                "Whether a NetworkPolicy is kept for the sandboxes of this template.",
                MANAGED,
                UNMANAGED,
                default=MANAGED,
            ),
            "envVarsInjectionPolicy": choice(
                "Whether a claim may add environment variables, or even replace them.",
                ALLOWED,
                OVERRIDES,
                DISALLOWED,
                default=DISALLOWED,
            ),
            "volumeClaimTemplatesPolicy": choice(
                "Whether a claim may add volume claim templates, or even replace them.",
                DISALLOWED,
                ALLOWED,
                OVERRIDES,
                default=DISALLOWED,
            ),
        },
        ["podTemplate"],
    )
    return resource("What sandboxes are made from.", spec)
