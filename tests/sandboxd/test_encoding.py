from __future__ import annotations

import json
import urllib.parse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.sandboxd.encoding import from_json, to_json, unquote

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES)
def test_to_json_writes_what_json_writes(value: Any) -> None:
    assert to_json(value) == json.dumps(value)
    assert from_json(to_json(value).encode()) == value


@given(_VALUES, st.sampled_from(["", " ", "\n\t "]))
def test_from_json_reads_what_json_writes(value: Any, blank: str) -> None:
    text = blank + json.dumps(value, ensure_ascii=False, indent=1) + blank
    assert from_json(text.encode()) == value


@pytest.mark.parametrize(
    "text", [b"", b"  ", b"{", b"{]", b'{"a"}', b"nope", b"1 2", b'"a', b'"\n"', b"[1,]", b"\xff", b"{'a': 1}"]
)
def test_invalid_json_raises_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        from_json(text)


def test_value_without_json_raises_type_error() -> None:
    with pytest.raises(TypeError, match="bytes"):
        to_json({"a": b""})


@given(st.text("ab%/+2C3fAé \x80", max_size=12))
def test_unquote_decodes_as_urllib_does(path: str) -> None:
    assert unquote(path) == urllib.parse.unquote(path, errors="surrogateescape")


def test_unquote_keeps_bytes_that_are_not_utf_8() -> None:
    assert unquote("a%ff%E2%82%ACb") == "a\udcff€b"
