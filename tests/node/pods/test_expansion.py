"""``$(NAME)`` in texts."""

from __future__ import annotations

import pytest

from sandpool.node.pods.expansion import expand, unknown

VALUES = {"A": "one", "B": "$(A)", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "one"),
        ("<$(A)$(A)>", "<oneone>"),
        ("$(B)", "$(A)"),
        ("$(EMPTY)", ""),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$one"),
        ("$$$$(A)", "$$(A)"),
        ("$A", "$A"),
        ("${A}", "${A}"),
        ("$(A", "$(A"),
        ("cost: 5$", "cost: 5$"),
        ("$", "$"),
        ("$()", "$()"),
        ("$(A)\n$(A)", "one\none"),
        ("$(A B)", "$(A B)"),
    ],
)
def test_variables_are_expanded(text: str, expanded: str) -> None:
    assert expand(text, VALUES) == expanded


def test_unknown_names_are_returned() -> None:
    assert unknown("$(A)/$(NONE)/$$(OTHER)/$(EMPTY)/$(", VALUES) == {"NONE"}
