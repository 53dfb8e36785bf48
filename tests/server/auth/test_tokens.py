"""Static tokens and the administrator's."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sandpool.server.auth.tokens import StaticTokens, admin_token
from sandpool.server.request.messages import User


def test_token_file_has_the_format_of_kubernetes(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text('# comment\nt1,alice,1\n\nt2,bob,2,"dev, ops"\nt3,carol,,\nt4,dave,4,solo\n')
    tokens = StaticTokens()
    tokens.load(path)
    assert tokens.find("t1") == User("alice", ("system:authenticated",), uid="1")
    assert tokens.find("t2") == User("bob", ("dev", "ops", "system:authenticated"), uid="2")
    assert tokens.find("t3") == User("carol", ("system:authenticated",))
    assert tokens.find("t4") == User("dave", ("solo", "system:authenticated"), uid="4")
    assert tokens.find("t5") is None
    assert tokens.find("") is None


@pytest.mark.parametrize("line", ["token,user", ",user,1", "token,,1", "token"])
def test_malformed_line_is_reported_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text(f"ok,ok,1\n{line}\n")
    with pytest.raises(ValueError, match=r"tokens\.csv, line 2: a token line has"):
        StaticTokens().load(path)


def test_admin_token_is_created_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "admin-token"
    token = admin_token(path)
    assert len(token) >= 43
    assert admin_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_empty_admin_token_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin-token"
    path.write_text("\n")
    assert admin_token(path)
