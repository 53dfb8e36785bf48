"""The words for a text that is no JSON object. Recorded cases hold the most common ones to kube-apiserver."""

from __future__ import annotations

import pytest

from sandpool.server.kinds.go_json import json_object_error


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
def test_errors(text: bytes, wrong: str) -> None:
    assert json_object_error(text) == wrong
