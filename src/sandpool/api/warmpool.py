"""The SandboxWarmPool: sandboxes that are ready before they are claimed.

``RollingUpdate`` and the counts of updated sandboxes are additions of this project.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.columns import AGE, Column
from sandpool.api.schema.fields import (
    Schema,
    amount_or_percentage,
    choice,
    conditions,
    number,
    resource,
    structure,
    text,
)

RECREATE: Final = "Recreate"
ON_REPLENISH: Final = "OnReplenish"
ROLLING_UPDATE: Final = "RollingUpdate"

COLUMNS: Final = (
    Column("Ready", "integer", ".status.readyReplicas"),
    Column("Desired", "integer", ".spec.replicas"),
    AGE,
)


def schema() -> Schema:
    rolling_update = structure(
        "How fast sandboxes of an old template revision are replaced.",
        {
            "maxSurge": amount_or_percentage("Maximum number of sandboxes above the desired number during the update."),
            "maxUnavailable": amount_or_percentage("Maximum number of missing sandboxes during the update."),
        },
    )
    spec = structure(
        "The desired state of the pool.",
        {
            "replicas": number("The desired number of unclaimed sandboxes.", minimum=0, default=1),
            "sandboxTemplateRef": structure(
                "The template of the sandboxes, in the same namespace.",
                {"name": text("Its name.")},
                ["name"],
            ),
            "updateStrategy": structure(
                "How existing sandboxes are updated when the template changes.",
                {
                    "type": choice(
                        "Recreate: all are replaced at once. OnReplenish: they stay until they are claimed. "
                        "RollingUpdate: they are replaced gradually.",
                        RECREATE,
                        ON_REPLENISH,
                        ROLLING_UPDATE,
                        default=ON_REPLENISH,
                    ),
                    "rollingUpdate": rolling_update,
                },
            ),
        },
        ["sandboxTemplateRef"],
    )
    status = structure(
        "The observed state of the pool.",
        {
            "conditions": conditions("Whether the pool makes progress."),
            "observedGeneration": number("The generation of the pool that this status describes.", "int64", minimum=0),
            "readyReplicas": number("Number of sandboxes that are ready to be claimed."),
            "replicas": number("Number of sandboxes in the pool."),
            "selector": text("A label selector that finds the sandboxes."),
            "updatedReadyReplicas": number("Number of ready sandboxes of the current template revision."),
            "updatedReplicas": number("Number of sandboxes of the current template revision."),
        },
    )
    return resource("Sandboxes that are ready before they are claimed.", spec, status)
