from __future__ import annotations

import pytest

from sandpool.api.kinds import CONFIG_MAP, DEPLOYMENT, NODE, POD
from sandpool.api.resource import ResourceType
from sandpool.server.apply import RESET_ALL_BUT_STATUS, RESET_STATUS, FieldSet, reset_fields
from sandpool.server.apply.fieldset import of

WIDGET = ResourceType("example.com", "v1", "Widget", "widgets", subresources=frozenset({"status"}))
POD_STATUS = of(("f:spec",), ("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:ownerReferences"))
PLAIN = ResourceType("example.com", "v1", "Plain", "plains")


@pytest.mark.parametrize(
    ("type", "subresource", "custom", "reset"),
    [
        (CONFIG_MAP, "", False, None),
        (POD, "", False, RESET_STATUS),
        (POD, "binding", False, RESET_STATUS),
        (POD, "status", False, POD_STATUS),
        (DEPLOYMENT, "status", False, of(("f:spec",), ("f:metadata", "f:labels"))),
        (NODE, "status", False, of(("f:spec",))),
        (WIDGET, "", True, RESET_STATUS),
        (WIDGET, "status", True, RESET_ALL_BUT_STATUS),
        (PLAIN, "", True, None),
    ],
)
def test_reset_fields_depend_on_kind_and_subresource(
    type: ResourceType, subresource: str, custom: bool, reset: FieldSet | None
) -> None:
    assert reset_fields(type, subresource, custom=custom) is reset
