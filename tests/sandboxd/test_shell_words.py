from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.sandboxd.shell_words import split


@given(st.text("ab \t\n'\"\\\\$é", max_size=12))
def test_split_finds_the_words_of_shlex(command: str) -> None:
    try:
        expected = shlex.split(command)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            split(command)
    else:
        assert split(command) == expected


@pytest.mark.parametrize("command", ["a'b'c", "''", "a ''", '"a\\"b"', '"a\\b"', "a\\ b", "'a\\'", "  a  "])
def test_split_handles_quotes_as_shlex_does(command: str) -> None:
    assert split(command) == shlex.split(command)
