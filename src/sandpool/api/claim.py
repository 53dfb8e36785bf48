"""The SandboxClaim: a request for a sandbox from a pool."""

from __future__ import annotations

from typing import Final

from sandpool.api.columns import AGE, Column
from sandpool.api.sandbox_spec import volume_claim_templates
from sandpool.api.schema.fields import (
    Schema,
    choice,
    conditions,
    metadata,
    moment,
    number,
    resource,
    sequence,
    structure,
    text,
)

DELETE: Final = "Delete"
DELETE_FOREGROUND: Final = "DeleteForeground"
RETAIN: Final = "Retain"

COLUMNS: Final = (
    Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
    Column("Sandbox", "string", ".status.sandbox.name"),
    Column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
    AGE,
)


def schema() -> Schema:
    lifecycle = structure(
        "How long the claim lasts.",
        {
            "shutdownPolicy": choice(
                "Whether the claim is deleted when it expires. Its sandbox is always deleted.",
                DELETE,
                DELETE_FOREGROUND,
                RETAIN,
                default=RETAIN,
            ),
            "shutdownTime": moment("When the claim expires; never if unset."),
            "ttlSecondsAfterFinished": number("How long the claim lasts after its pod has ended.", minimum=0),
        },
    )
    variable = structure(
        "An environment variable.",
        {
            "containerName": text("The container that gets it; the first one if unset."),
            "name": text("Its name."),
            "value": text("Its value."),
        },
        ["name", "value"],
    )
    spec = structure(
        "The requested sandbox.",
        {
            "additionalPodMetadata": metadata("Labels and annotations of the pod besides those of the template."),
            "env": sequence(
                "Environment variables of the sandbox. If set, a new sandbox is created for this claim.",
                variable,
                **{"x-kubernetes-list-type": "atomic"},
            ),
            "lifecycle": lifecycle,
            "volumeClaimTemplates": volume_claim_templates(
                "Volumes in addition to those of the template. If set, a new sandbox is created for this claim."
            ),
            "warmPoolRef": structure(
                "The pool to take a sandbox from, in the same namespace.", {"name": text("Its name.")}, ["name"]
            ),
        },
        ["warmPoolRef"],
    )
    status = structure(
        "What was given.",
        {
            "conditions": conditions("Ready and Finished, copied from the sandbox."),
            "sandbox": structure(
                "The sandbox.",
                {
                    "name": text("Its name."),
                    "podIPs": sequence("The addresses of its pod.", {"type": "string"}),
                },
            ),
        },
    )
    return resource("A request for a sandbox from a pool.", spec, status)
