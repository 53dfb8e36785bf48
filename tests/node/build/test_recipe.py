from __future__ import annotations

import pytest

from sandpool.node.build.recipe import substitute


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$A/${A}b", "1/1b"),
        ("${NONE:-2}${A:-2}", "21"),
        ("${A:+yes}${NONE:+no}", "yes"),
        (r"\$A \n", r"$A \n"),
        ("$NONE.", "."),
    ],
)
def test_variables_are_replaced_as_in_dockerfiles(text: str, result: str) -> None:
    assert substitute(text, {"A": "1"}) == result
