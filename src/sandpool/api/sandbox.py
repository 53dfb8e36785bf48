"""The Sandbox: one stateful, isolated pod with a stable identity."""

from __future__ import annotations

from typing import Final

from sandpool.api.columns import AGE, Column
from sandpool.api.sandbox_spec import Profile, sandbox_spec_properties
from sandpool.api.schema.fields import Schema, choice, conditions, moment, resource, sequence, structure, text
from sandpool.api.schema.rules import immutable_field

RUNNING: Final = "Running"
SUSPENDED: Final = "Suspended"

DELETE: Final = "Delete"
RETAIN: Final = "Retain"

COLUMNS: Final = (
    Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
    Column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
    AGE,
)


def schema(profile: Profile = "full") -> Schema:
    spec = structure(
        "The desired state of the sandbox.",
        {
            **sandbox_spec_properties(profile),
            "operatingMode": choice(
                "Whether the pod runs. A suspended sandbox keeps its identity, volumes and Service.",
                RUNNING,
                SUSPENDED,
                default=RUNNING,
            ),
            "shutdownTime": moment("When the sandbox expires; never if unset."),
            "shutdownPolicy": choice(
                "Whether the Sandbox object is deleted when it expires. Its pod and Service are always deleted.",
                DELETE,
                RETAIN,
                default=RETAIN,
            ),
        },
        ["podTemplate"],
    )
    spec["x-kubernetes-validations"] = [
        {"rule": immutable_field("volumeClaimTemplates"), "message": "volumeClaimTemplates is immutable"}
    ]
    status = structure(
        "The observed state of the sandbox.",
        {
            "conditions": conditions("Ready, Suspended, Finished and PodScheduled."),
            "nodeName": text("The node the pod runs on."),
            "podIPs": sequence("The addresses of the pod.", {"type": "string"}),
            "selector": text("A label selector that finds the pod."),
            "service": text("The name of the Service."),
            "serviceFQDN": text("The DNS name of the Service."),
        },
    )
    return resource("One stateful, isolated pod with a stable identity.", spec, status)
