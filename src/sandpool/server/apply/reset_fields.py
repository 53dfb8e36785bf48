"""Reset fields: fields that a write cannot change, so the writer does not own them."""

from __future__ import annotations

from typing import Final

from sandpool.api.resource import ResourceType
from sandpool.server.apply.fieldset import FieldSet, of

# Fields that the server manages and those that identify the object. They have no owner.
SERVER_MANAGED: Final = of(
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata",),
    *(
        ("f:metadata", "f:" + name)
        for name in (
            "clusterName",
            "creationTimestamp",
            "generation",
            "managedFields",
            "name",
            "namespace",
            "resourceVersion",
            "selfLink",
            "uid",
        )
    ),
)
# A write to a resource with a status subresource does not change the status.
RESET_STATUS: Final = of(("f:status",))
# A write to the status of a custom resource changes nothing else.
RESET_ALL_BUT_STATUS: Final = of(("f:metadata",), ("f:spec",))
# A write to the status of a built-in resource may change metadata, except for what some kinds protect.
_RESET_SPEC: Final = of(("f:spec",))
_RESET_ON_STATUS: Final = {
    "deployments.apps": of(("f:spec",), ("f:metadata", "f:labels")),
    "pods": of(("f:spec",), ("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:ownerReferences")),
}


def reset_fields(type: ResourceType, subresource: str, *, custom: bool) -> FieldSet | None:
    """The fields that writes to a resource, or to one of its subresources, do not change."""
    if "status" not in type.subresources:
        return None
    if subresource != "status":
        return RESET_STATUS
    return RESET_ALL_BUT_STATUS if custom else _RESET_ON_STATUS.get(type.group_resource, _RESET_SPEC)
