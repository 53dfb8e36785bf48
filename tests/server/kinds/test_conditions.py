"""The maximum length of the texts of a condition, which is too long for recorded cases."""

from __future__ import annotations

from sandpool.api.causes import too_long
from sandpool.api.resource import Object
from sandpool.server.kinds.conditions import validate_conditions

CONDITION: Object = {"type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-02T03:04:05Z"}


def test_condition_texts_have_a_maximum_length() -> None:
    full = {**CONDITION, "reason": "R" * 1024, "message": "m" * 32768}
    assert list(validate_conditions([full], "c")) == []
    over = {**CONDITION, "reason": "R" * 1025, "message": "ü" * 16385}
    assert list(validate_conditions([over], "c")) == [too_long("c[0].reason", 1024), too_long("c[0].message", 32768)]
