"""The directories of a user, and the user behind sudo."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from sandpool.home.users import config_dir, default_data_dir, sudo_caller

NOBODY = pwd.getpwnam("nobody")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="sudo makes a process root")


@pytest.mark.parametrize(
    ("configured", "expected"),
    [("", "/home/alice/.local/share"), ("/elsewhere", "/elsewhere"), ("relative", "/home/alice/.local/share")],
)
def test_data_is_kept_in_the_xdg_data_directory(configured: str, expected: str) -> None:
    environ = {"HOME": "/home/alice", "XDG_DATA_HOME": configured}
    assert default_data_dir(environ) == Path(expected) / "sandpool"


def test_settings_are_kept_in_the_xdg_configuration_directory() -> None:
    assert config_dir({"HOME": "/home/alice"}) == Path("/home/alice/.config/sandpool")
    assert config_dir({"HOME": "/home/alice", "XDG_CONFIG_HOME": "/etc/alice"}) == Path("/etc/alice/sandpool")


@as_root
def test_the_user_who_called_sudo_is_known() -> None:
    caller = sudo_caller({"SUDO_UID": str(NOBODY.pw_uid)})
    assert caller is not None
    assert (caller.uid, caller.gid, caller.name, caller.home) == (
        NOBODY.pw_uid,
        NOBODY.pw_gid,
        "nobody",
        Path(NOBODY.pw_dir),
    )


@pytest.mark.parametrize("environ", [{}, {"SUDO_UID": "0"}, {"SUDO_UID": "no number"}, {"SUDO_UID": "4294000000"}])
def test_without_sudo_there_is_no_caller(environ: dict[str, str]) -> None:
    assert sudo_caller(environ) is None


@as_root
def test_root_keeps_its_data_apart_when_sudo_leaves_the_callers_home_in_the_environment() -> None:
    environ = {"SUDO_UID": str(NOBODY.pw_uid), "HOME": NOBODY.pw_dir}
    assert default_data_dir(environ) == Path(pwd.getpwuid(0).pw_dir) / ".local" / "share" / "sandpool"
