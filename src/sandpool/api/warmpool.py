"""The SandboxWarmPool: sandboxes that are ready before anybody asks.

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
        "How fast sandboxes of an old template are replaced.",
        {
            "maxSurge": amount_or_percentage("How many more than the desired sandboxes there may be meanwhile."),
            "maxUnavailable": amount_or_percentage("How many of the desired sandboxes may be missing meanwhile."),
        },
    )
    spec = structure(
        "What the pool should be.",
        {
            "replicas": number("How many sandboxes are kept ready.", minimum=0, default=1),
            "sandboxTemplateRef": structure(
                "The template of the sandboxes, in the same namespace.",
                {"name": text("Its name.")},
                ["name"],
            ),
            "updateStrategy": structure(
                "What happens to the sandboxes that are there when the template changes.",
                {
                    "type": choice(
                        "Recreate: all are replaced at once. OnReplenish: they are handed out until they are gone. "
                        "RollingUpdate: they are replaced step by step.",
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
        "What the pool is.",
        {
            "conditions": conditions("Whether the pool makes progress."),
            "observedGeneration": number("The generation of the pool this status is about.", "int64", minimum=0),
            "readyReplicas": number("How many sandboxes are ready to be claimed."),
            "replicas": number("How many sandboxes there are."),
            "selector": text("A label selector that finds the sandboxes."),
            "updatedReadyReplicas": number("How many ready sandboxes are of the current template."),
            "updatedReplicas": number("How many sandboxes are of the current template."),
        },
    )
    return resource("Sandboxes that are ready before anybody asks.", spec, status)
