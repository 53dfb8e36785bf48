from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.quantity import Quantity, canonical, canonical_amount, parse


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("0", "0"),
        ("1000m", "1"),
        ("500m", "500m"),
        (0.5, "500m"),
        ("0.5", "500m"),
        (1073741824, "1073741824"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1000Ki", "1000Ki"),
        ("1000k", "1M"),
        ("1e3", "1e3"),
        ("100E3", "100e3"),
        ("-1500m", "-1500m"),
        ("+5", "5"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        (".5", "500m"),
        ("5.", "5"),
    ],
)
def test_quantities_have_a_canonical_form(text: str | float, stored: str) -> None:
    assert canonical(text) == stored


def test_amounts_are_rounded_up_to_thousandths() -> None:
    assert canonical_amount("1u") == "1m"
    assert canonical_amount("1500u") == "2m"
    assert canonical_amount("1Gi") == "1Gi"


def test_quantities_are_compared_by_value() -> None:
    assert parse("1Gi") == parse("1024Mi") == parse(2**30)
    assert parse("1G") < parse("1Gi") < parse("1100M")
    assert hash(parse("1000m")) == hash(parse("1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "quantities must match the regular expression"),
        ("", "quantities must match the regular expression"),
        (".", "quantities must match the regular expression"),
        ("1x", "quantities must match the regular expression"),
        ("1Kk", "unable to parse quantity's suffix"),
        ("1e99999", "unable to parse quantity's suffix"),
        (True, "quantities must match the regular expression"),
    ],
)
def test_invalid_quantity_is_rejected(text: str | bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


@given(st.integers(min_value=-(10**18), max_value=10**18), st.sampled_from(["decimal", "binary", "exponent"]))
def test_canonical_form_is_idempotent_and_equal(billionths: int, family: str) -> None:
    stored = canonical(str(Quantity(billionths, family)))  # type: ignore[arg-type]
    assert canonical(stored) == stored
    if family != "binary":  # large binary quantities are rounded up to whole numbers
        assert parse(stored).billionths == billionths
