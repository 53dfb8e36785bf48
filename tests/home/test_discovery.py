"""Homes announce themselves and are found by the users they belong to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandpool.home import discovery
from sandpool.home.discovery import (
    Home,
    announced,
    hand_over,
    handed_over,
    home_of,
    read_kubeconfig,
    running,
    seen_by_caller,
)
from sandpool.home.owned_directory import NotOwned
from sandpool.home.process import ProcessIdentity
from sandpool.home.users import User

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OTHER = 54321
KUBECONFIG = '{"server": "https://127.0.0.1:6443"}'
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands files to another user")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def home_in(data_dir: Path, **changes: object) -> Home:
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "kubeconfig").write_text(KUBECONFIG)
    (data_dir / "router-token").write_text("token")
    home = Home(
        name="",
        process=ProcessIdentity.current(),
        url="https://127.0.0.1:6443",
        kubeconfig=data_dir / "kubeconfig",
        router_url="http://127.0.0.1:1",
        router_token_file=data_dir / "router-token",
        metrics_url=None,
        data_dir=data_dir,
        log=None,
        node="a node",
        settings={},
        version="1.2.3",
        started=NOW,
    )
    return replace(home, **changes)  # type: ignore[arg-type]


@pytest.fixture
def alice(tmp_path: Path) -> User:
    user = User(OTHER, OTHER, "alice", tmp_path / "alice")
    user.home.mkdir()
    os.chown(user.home, OTHER, OTHER)
    return user


def default_dir(environ: dict[str, str]) -> Path:
    return Path(environ["HOME"]) / ".local" / "share" / "sandpool"


def test_a_home_is_found_while_it_is_announced(environ: dict[str, str]) -> None:
    assert running(environ) is None
    with announced(home_in(default_dir(environ)), environ) as home:
        assert home.name == "local"
        assert running(environ) == home
        assert home_of(default_dir(environ), environ) == home
    assert running(environ) is None


def test_a_home_with_a_data_directory_of_its_own_is_found_too(environ: dict[str, str], tmp_path: Path) -> None:
    with announced(home_in(tmp_path / "elsewhere"), environ) as home:
        assert len(home.name) == 8
        assert running(environ) == home
        assert home_of(tmp_path / "elsewhere", environ) == home
        assert home_of(default_dir(environ), environ) is None


def test_the_home_in_the_default_directory_comes_first_then_the_newest(environ: dict[str, str], tmp_path: Path) -> None:
    later = NOW + timedelta(seconds=1)
    with (
        announced(home_in(tmp_path / "old"), environ) as old,
        announced(home_in(tmp_path / "new", started=later), environ) as new,
        announced(home_in(default_dir(environ)), environ) as local,
    ):
        assert discovery.all_running(environ) == [local, new, old]


def test_what_a_killed_home_left_is_ignored(environ: dict[str, str]) -> None:
    process = ProcessIdentity.current()
    with announced(home_in(default_dir(environ), process=replace(process, started=process.started - 1)), environ):
        assert running(environ) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"process": 1}', b"\xff"])
def test_a_description_that_cannot_be_understood_is_ignored(environ: dict[str, str], content: bytes) -> None:
    entry = default_dir(environ) / "homes" / "local"
    entry.mkdir(parents=True)
    (entry / "home.json").write_bytes(content)
    assert running(environ) is None


def test_a_home_removes_only_its_own_description(environ: dict[str, str]) -> None:
    first = announced(home_in(default_dir(environ)), environ)
    first.__enter__()
    second = announced(home_in(default_dir(environ), url="https://127.0.0.1:6444"), environ)
    home = second.__enter__()
    first.__exit__(None, None, None)
    assert running(environ) == home
    second.__exit__(None, None, None)
    assert running(environ) is None


@as_root
def test_the_user_who_called_sudo_gets_copies_that_only_that_user_can_read(
    environ: dict[str, str], alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"HOME": str(alice.home)}
    with announced(home_in(default_dir(environ)), environ) as own, handed_over(own, alice) as home:
        assert home.kubeconfig == alice.home / ".local/share/sandpool/homes/sudo/kubeconfig"
        assert home.router_token_file is not None
        for copy, content in ((home.kubeconfig, KUBECONFIG), (home.router_token_file, "token")):
            status = copy.stat()
            assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (OTHER, OTHER, 0o600)
            assert copy.read_text() == content
        with monkeypatch.context() as as_alice:
            as_alice.setattr(os, "geteuid", lambda: OTHER)
            assert running(theirs) == home
        assert running(environ) == own
        monkeypatch.setattr("sandpool.home.users.sudo_caller", lambda environ: alice)
        assert seen_by_caller(own, environ) == home
        monkeypatch.undo()
        assert seen_by_caller(own, environ) == own
    assert not (home.kubeconfig.parent / "home.json").exists()


def led_elsewhere(alice: User, tmp_path: Path) -> tuple[Home, Path]:
    """A home with its kubeconfig in a directory of alice, who has replaced that directory by a link to root's."""
    home = home_in(alice.home / "place")
    (secret := tmp_path / "secret").mkdir()
    (secret / "kubeconfig").write_text("a secret of root")
    (secret / "router-token").write_text("another")
    (alice.home / "place").rename(alice.home / "moved")
    (alice.home / "place").symlink_to(secret)
    return home, secret / "kubeconfig"


@as_root
def test_secret_of_root_is_not_copied_in_place_of_a_kubeconfig(
    environ: dict[str, str], alice: User, tmp_path: Path
) -> None:
    home, _ = led_elsewhere(alice, tmp_path)
    with announced(home, environ) as own, pytest.raises(NotOwned, match="not the kubeconfig"), handed_over(own, alice):
        pass
    copied = [file.read_text() for file in (alice.home / ".local").rglob("*") if file.is_file()]
    assert not any("secret" in content for content in copied)


@as_root
def test_file_of_root_is_not_given_away_in_place_of_a_kubeconfig(alice: User, tmp_path: Path) -> None:
    home, secret = led_elsewhere(alice, tmp_path)
    with pytest.raises(NotOwned, match="belongs to the user"):
        hand_over(home.kubeconfig, KUBECONFIG.encode(), alice)
    assert (secret.stat().st_uid, secret.read_text()) == (0, "a secret of root")


@as_root
def test_kubeconfig_in_a_directory_of_the_user_is_given_to_that_user(alice: User, tmp_path: Path) -> None:
    home = home_in(alice.home)
    for _ in range(2):  # the next start finds a file of alice
        hand_over(home.kubeconfig, read_kubeconfig(home, alice), alice)
        status = home.kubeconfig.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (OTHER, OTHER, 0o600)
        assert home.kubeconfig.read_text() == KUBECONFIG


def describe(register: Path, home: Home) -> Path:
    """Write a description as a user could who has write access to the register."""
    file = register / "local" / "home.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(discovery._document(replace(home, name="local"))))
    return file


@as_root
def test_root_ignores_the_homes_of_the_user_who_called_sudo(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise that user could have `sudo sandpool` end processes, run programs and talk to a server of choice."""
    alice = User(OTHER, OTHER, "alice", tmp_path / "alice")
    os.chown(describe(alice.home / ".local/share/sandpool/homes", home_in(tmp_path / "data")), OTHER, OTHER)
    monkeypatch.setattr("sandpool.home.users.sudo_caller", lambda environ: alice)
    monkeypatch.setattr(ProcessIdentity, "owner", lambda self: OTHER)
    assert running(environ) is None


@as_root
def test_description_that_belongs_to_another_user_is_ignored(environ: dict[str, str], tmp_path: Path) -> None:
    """`sudo -E` keeps XDG_DATA_HOME, so the register of root can be a directory of another user."""
    file = describe(default_dir(environ) / "homes", home_in(tmp_path / "data"))
    assert running(environ) is not None
    os.chown(file, OTHER, OTHER)
    assert running(environ) is None


def test_description_that_is_a_link_is_ignored(environ: dict[str, str], tmp_path: Path) -> None:
    file = describe(default_dir(environ) / "homes", home_in(tmp_path / "data"))
    file.rename(tmp_path / "target")
    file.symlink_to(tmp_path / "target")
    assert running(environ) is None


def test_description_that_is_a_pipe_is_ignored(environ: dict[str, str]) -> None:
    entry = default_dir(environ) / "homes" / "local"
    entry.mkdir(parents=True)
    os.mkfifo(entry / "home.json")
    # In a process of its own: reading a pipe would wait for a writer.
    code = "from sandpool.home.discovery import running; assert running() is None"
    subprocess.run([sys.executable, "-c", code], env=environ, timeout=30, check=True)
