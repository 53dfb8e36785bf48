from __future__ import annotations

import posixpath
from itertools import product
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.router.destination import RequestRejected
from sandpool.router.paths import comparable
from sandpool.router.routes import PathMatch


@pytest.mark.parametrize(
    ("path", "compared"),
    [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b/"),
        ("/a//b", "/a//b"),
        ("//a", "//a"),
        ("/a/.b", "/a/.b"),
        ("/a/b..", "/a/b.."),
        ("/a/...", "/a/..."),
        ("/a/..b/.c", "/a/..b/.c"),
        ("/%61/%7Eb", "/a/~b"),
        ("/a/b%2Fc", "/a/b%2Fc"),
        ("/a/b%20c", "/a/b%20c"),
        ("/a/%252e%252e/b", "/a/%252e%252e/b"),  # the name "%2e%2e", to all that decode once
        ("/a/b;v=1", "/a/b;v=1"),
        ("/a/%", "/a/%"),
        ("*", "*"),
    ],
)
def test_path_is_normalized_for_comparison(path: str, compared: str) -> None:
    assert comparable(path) == compared


@pytest.mark.parametrize(
    "path",
    [
        "/a/../b",
        "/a/./b",
        "/a/..",
        "/a/.",
        "/..",
        "/a//../b",
        "/a/%2e%2e/b",
        "/a/%2E%2e/b",
        "/a/.%2e/b",
        "/a/%2e/b",
        "/a/..%2fb",
        "/a%2F..%2Fb",
        "/a/x%2f..%2f..%2fb",
        "/a/..\\b",
        "/a%5c..%5Cb",
        "/a/..;/b",
        "/a/..;v=1/b",
        "/a/..#",
        "/b#/a",
        "http://a/a/../b",
    ],
)
def test_ambiguous_path_is_rejected(path: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        comparable(path)
    assert refused.value.status == 400


_PIECES = ("a", "b", ".", "..", "/", "//", "%2e", "%2f", "%5C", "\\", "%61", "%25", ";", "#")


def _readings(path: str) -> set[str]:
    """How sandboxes may read it: each of these first, or not at all."""
    found = set()
    for decode, turn, strip in product((False, True), repeat=3):
        text = unquote(path) if decode else path
        text = text.replace("\\", "/") if turn else text
        text = "/".join(name.partition(";")[0] for name in text.split("/")) if strip else text
        found.add(posixpath.normpath(text.partition("#")[0]))
    return found


@given(st.lists(st.sampled_from(_PIECES), max_size=8).map("".join))
def test_admitted_path_is_below_its_prefix_in_every_reading(rest: str) -> None:
    path = f"/a{rest}"
    try:
        let_in = PathMatch("/a").matches(comparable(path))
    except RequestRejected:
        return
    if let_in:
        assert all(reading == "/a" or reading.startswith("/a/") for reading in _readings(path)), _readings(path)
