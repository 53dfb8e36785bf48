"""Tokens, token files and passwords."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandpool.kube.credentials import ANONYMOUS, CredentialsError, Fixed, RequestAuth, TokenFile


async def test_fixed_credentials_are_sent() -> None:
    assert (await ANONYMOUS.auth()).authorization is None
    assert (await Fixed.token("abc").auth()).authorization == "Bearer abc"
    assert (await Fixed.password("ann", "påss").auth()).authorization == "Basic YW5uOnDDpXNz"
    assert not await Fixed.token("abc").renew(RequestAuth("Bearer abc"))


def test_repr_hides_the_secret() -> None:
    assert "secret" not in repr(RequestAuth("Bearer secret"))


async def test_token_file_is_read_again_when_its_link_changes(tmp_path: Path) -> None:
    """The kubelet swaps a symbolic link to a whole directory."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name + "\n")
    (tmp_path / "current").symlink_to("one")
    token = TokenFile(tmp_path / "current" / "token")
    assert (await token.auth()).authorization == "Bearer one"
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(tmp_path / "current")
    assert (await token.auth()).authorization == "Bearer two"


async def test_token_file_is_read_again_when_it_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = TokenFile(path)
    first = await token.auth()
    assert await token.auth() is first
    path.write_text("longer")
    assert (await token.auth()).authorization == "Bearer longer"


async def test_rejected_token_causes_a_new_read_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = TokenFile(path)
    refused = await token.auth()
    assert not await token.renew(refused)
    before = path.stat()
    path.write_text("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await token.auth() == refused
    assert await token.renew(refused)
    assert (await token.auth()).authorization == "Bearer two"


async def test_last_token_is_used_while_the_file_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = TokenFile(path)
    await token.auth()
    path.write_text("")
    assert (await token.auth()).authorization == "Bearer one"
    path.unlink()
    assert (await token.auth()).authorization == "Bearer one"
    path.write_text("three")
    assert (await token.auth()).authorization == "Bearer three"


@pytest.mark.parametrize("content", [None, "", " \n"])
async def test_token_file_without_a_token_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CredentialsError, match="cannot read the token file"):
        await TokenFile(path).auth()
