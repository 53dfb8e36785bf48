from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api import causes
from sandpool.api.causes import Cause


def test_cause_is_printed_as_field_and_message() -> None:
    assert str(causes.required("spec.name")) == "spec.name: Required value"


def test_each_error_has_the_words_of_kubernetes() -> None:
    assert causes.required("f", "no default").message == "Required value: no default"
    assert causes.invalid("f", -1, "must be positive") == Cause(
        "f", "FieldValueInvalid", "Invalid value: -1: must be positive"
    )
    assert causes.wrong_type("f", "string", "x").reason == "FieldValueTypeInvalid"
    assert causes.immutable("f", "x").message == 'Invalid value: "x": field is immutable'
    assert causes.not_supported("f", "C", ["A", "B"]).message == 'Unsupported value: "C": supported values: "A", "B"'
    assert causes.not_supported("f", 3, [1, 2]).message == 'Unsupported value: 3: supported values: "1", "2"'
    assert causes.forbidden("f", "no").message == "Forbidden: no"
    assert causes.duplicate("f", {"k": "a"}).message == 'Duplicate value: {"k":"a"}'
    assert causes.not_found("f", "x").message == 'Not found: "x"'
    assert causes.too_long("f", 4).message == "Too long: may not be more than 4 bytes"
    assert causes.too_long("f", 1).message == "Too long: may not be more than 1 byte"
    assert causes.too_many("f", 3, 2).message == "Too many: 3: must have at most 2 items"
    assert causes.too_many("f", 3, 1).message == "Too many: 3: must have at most 1 item"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", '"a"'),
        ('a"\\\n\x00\u00a0é😀', '"a\\"\\\\\\n\\x00\\u00a0é😀"'),
        (1, "1"),
        (True, "true"),
        (None, "null"),
        (0.25, "0.25"),
        (1.0, "1"),
        (2.0**70, "1.1805916207174113e+21"),
        (1e20, "100000000000000000000"),
        (1.5e-7, "1.5e-07"),
        (0.00015, "0.00015"),
        (2**70, "1180591620717411303424"),
        ({"b": 1, "a": ["<&>"]}, '{"a":["\\u003c\\u0026\\u003e"],"b":1}'),
    ],
)
def test_values_are_printed_as_in_go(value: Any, text: str) -> None:
    assert causes.shown(value) == text


@given(st.floats() | st.text() | st.integers())
def test_any_value_can_be_printed(value: Any) -> None:
    assert causes.shown(value)
