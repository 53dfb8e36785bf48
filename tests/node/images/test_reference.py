from __future__ import annotations

import pytest

from sandpool.node.images.reference import InvalidImageName, Reference, parse

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("python", Reference("", "python", "latest", "")),
        ("python:3.12-slim", Reference("", "python", "3.12-slim", "")),
        ("library/python", Reference("", "library/python", "latest", "")),
        ("localhost/me/python", Reference("localhost", "me/python", "latest", "")),
        ("registry.example.com:5000/a/b:c", Reference("registry.example.com:5000", "a/b", "c", "")),
        ("registry.example.com:5000/a", Reference("registry.example.com:5000", "a", "latest", "")),
        (f"example.com/a:tag@{DIGEST}", Reference("example.com", "a", "", DIGEST)),
        ("[::1]:5000/a", Reference("[::1]:5000", "a", "latest", "")),
        ("a__b/c---d.e", Reference("", "a__b/c---d.e", "latest", "")),
    ],
)
def test_image_name_is_parsed(text: str, reference: Reference) -> None:
    assert parse(text) == reference


@pytest.mark.parametrize(
    "text",
    ["", "UPPER", "a b", "a:", "a@sha256:short", "a@", "/a", "a//b", "../a", "a/../b", "ex_ample.com/a", "a:b:c", "-a"],
)
def test_invalid_image_name_is_rejected(text: str) -> None:
    with pytest.raises(InvalidImageName):
        parse(text)


@pytest.mark.parametrize("text", ["python", "example.com/a:b", f"example.com/a@{DIGEST}"])
def test_printed_image_name_is_parsed_to_the_same(text: str) -> None:
    assert parse(str(parse(text))) == parse(text)
