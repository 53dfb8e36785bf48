"""Counts and percentages."""

from __future__ import annotations

import pytest

from sandpool.server.kinds.int_or_percent import is_zero, validate_int_or_percent


@pytest.mark.parametrize("value", [0, "0%", "00%", "0", "x", "", "%", "-0", "1x"])
def test_zero_values_are_zero(value: int | str) -> None:
    assert is_zero(value)


@pytest.mark.parametrize("value", [1, -1, "1%", "100%", "5", "-5", "9" * 5000 + "%"])
def test_other_values_are_not_zero(value: int | str) -> None:
    assert not is_zero(value)


@pytest.mark.parametrize(
    ("value", "whole", "wrong"),
    [
        (0, True, ""),
        ("100%", True, ""),
        ("101%", True, "must not be greater than 100%"),
        ("101%", False, ""),
        ("9" * 5000 + "%", True, "must not be greater than 100%"),
        (-1, False, "must be greater than or equal to 0"),
        ("5", True, "a valid percent string"),
        ("-5%", True, "a valid percent string"),
    ],
)
def test_invalid_values_are_reported(value: int | str, whole: bool, wrong: str) -> None:
    causes = list(validate_int_or_percent(value, "p", whole=whole))
    assert bool(causes) == bool(wrong)
    assert all(wrong in cause.message for cause in causes)
