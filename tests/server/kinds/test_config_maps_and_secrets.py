"""The maximum size of a ConfigMap or Secret, which is too large for recorded cases."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.causes import too_long
from sandpool.server.kinds.config_maps_and_secrets import (
    SIZE_LIMIT,
    ConfigMapStrategy,
    SecretStrategy,
    decoded_size,
    json_object_error,
)

FULL = "x" * SIZE_LIMIT


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


@given(st.dictionaries(st.text(), st.binary()))
def test_size_is_that_of_the_decoded_values(data: dict[str, bytes]) -> None:
    assert decoded_size({key: encoded(value) for key, value in data.items()}) == sum(map(len, data.values()))


def test_config_map_counts_text_and_bytes_together() -> None:
    strategy = ConfigMapStrategy()
    assert strategy.validate({"data": {"a": FULL}}, None) == []
    too_much = {"data": {"a": FULL}, "binaryData": {"b": encoded(b"x")}}
    assert strategy.validate(too_much, None) == [too_long("[]", SIZE_LIMIT)]


def test_secret_counts_decoded_bytes() -> None:
    strategy = SecretStrategy()
    full = strategy.default({"metadata": {}, "stringData": {"a": FULL}})
    assert strategy.validate(full, None) == []
    too_much = strategy.default({**full, "stringData": {"b": "x"}})
    assert strategy.validate(too_much, full) == [too_long("data", SIZE_LIMIT)]


def test_string_data_win_over_data_of_the_same_key() -> None:
    stored = SecretStrategy().default({"data": {"a": "b2xk", "b": "b2xk"}, "stringData": {"a": "new"}})
    assert stored == {"data": {"a": "bmV3", "b": "b2xk"}, "type": "Opaque"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"{}", ""),
        (b" null ", ""),
        (b"", "unexpected end of JSON input"),
        (b'{"a": ', "unexpected end of JSON input"),
        (b"{}]", "invalid character ']' after top-level value"),
        (b'{"a" 1}', "invalid character '1' after object key"),
        (b"[1]", "json: cannot unmarshal array into Go value of type map[string]interface {}"),
        (b"1" * 5000, "json: cannot unmarshal number into Go value of type map[string]interface {}"),
        (b"true", "json: cannot unmarshal bool into Go value of type map[string]interface {}"),
        (b"\xff", "invalid character '\ufffd' looking for beginning of value"),
        (b"[" * 100_000, "exceeded max depth"),
    ],
)
def test_json_errors_have_the_words_of_go(text: bytes, wrong: str) -> None:
    assert json_object_error(text) == wrong
