"""Text of others, made safe for terminals."""

from __future__ import annotations

import os

import pytest

from sandpool.api.printable import one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode, 漢字 🙂", "plain, ünïcode, 漢字 🙂"),
        ("two\n\tlines", "two\n\tlines"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("over\rwritten", "over\\rwritten"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
        (os.fsdecode(b"\xff"), "\\udcff"),
    ],
)
def test_characters_that_a_terminal_obeys_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_one_line_has_no_line_breaks_of_any_kind() -> None:
    assert one_line(" a\n\r\n b\u2028c\x1b[K\x0bd ") == "a b c\\x1b[K d"
