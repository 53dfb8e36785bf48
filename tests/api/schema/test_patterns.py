from __future__ import annotations

import pytest

from sandpool.api.schema.fields import QUANTITY_PATTERN
from sandpool.api.schema.patterns import UnsupportedPattern, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("^a$", "a", True),
        ("^a$", "a\n", False),  # in Go, $ is the very end
        ("a", "bab", True),  # patterns are searched for
        (r"^\d+$", "١٢", False),  # and digits are ASCII
        (r"^\w\z", "a", True),
        (r"^[[:alpha:]_]+$", "ab_", True),
        (r"^[^[:digit:]]+$", "a1", False),
        (r"^[]$]+$", "]$", True),
        (r"^\$$", "$", True),
        (r"^[a[]+$", "[a", True),
        ("(?i)^abc$", "ABC", True),
        ("(?s)^a.b$", "a\nb", True),
        ("^(?P<x>a)(?:b|c)$", "ac", True),
        (QUANTITY_PATTERN, "1.5Gi", True),
        (QUANTITY_PATTERN, "1x", False),
    ],
)
def test_patterns_match_as_in_go(pattern: str, text: str, matches: bool) -> None:
    assert (compile_pattern(pattern).search(text) is not None) == matches


@pytest.mark.parametrize("pattern", ["(", "[a", r"\p{Greek}", "a(?i)b", "(?m)^a$", "(?U)a+"])
def test_unsupported_patterns_are_rejected(pattern: str) -> None:
    with pytest.raises(UnsupportedPattern):
        compile_pattern(pattern)
