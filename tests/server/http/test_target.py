"""Request targets."""

from __future__ import annotations

import string
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandpool.kube.errors import BadRequest
from sandpool.server.http.target import parse_query, split_target

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", ""),
        (b"/a/b?c=d?e", "/a/b", "c=d?e"),
        (b"/a%2Fb", "/a%2Fb", ""),
        (b"http://host:1/a?b", "/a", "b"),
        (b"http://host", "/", ""),
    ],
)
def test_target_is_split_into_path_and_query(target: bytes, path: str, query: str) -> None:
    assert split_target(target) == (path, query)


@pytest.mark.parametrize("target", [b"*", b"host:1", b"/\xff", b"/%", b"/%4", b"/a%g0", b"", b"?a"])
def test_invalid_targets_are_rejected(target: bytes) -> None:
    with pytest.raises(BadRequest):
        split_target(target)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("", {}),
        ("a", {"a": ""}),
        ("a=1&a=2", {"a": "1"}),
        ("a+b=c+d&&e=%26%3D", {"a b": "c d", "e": "&="}),
        ("a=%zz", {"a": "%zz"}),
    ],
)
def test_query_is_parsed(raw: str, expected: dict[str, str]) -> None:
    assert parse_query(raw) == expected


@relaxed
@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_encoded_queries_are_decoded(parameters: dict[str, str]) -> None:
    assert parse_query(urlencode(parameters)) == parameters


@relaxed
@given(st.lists(st.text(string.printable), min_size=1))
def test_encoded_paths_are_kept(segments: list[str]) -> None:
    path = "".join("/" + quote(segment, safe="") for segment in segments)
    assert split_target(path.encode() + b"?x=y") == (path, "x=y")
