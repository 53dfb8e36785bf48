"""The user of a process, behind sudo the calling one, and the directories of that user.

``sudo sandpool up`` runs as root for the user who typed it. That user has to be able to use what it starts."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandpool.home import locations


@dataclass(frozen=True, slots=True)
class User:
    """An account of this machine."""

    uid: int
    gid: int
    name: str
    home: Path


def home_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home directory of this process. Some configurations of sudo leave HOME as it was: files of root do not
    belong there, and root does not follow those that are there."""
    home = Path(environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir)
    caller = sudo_caller(environ)
    return Path(pwd.getpwuid(0).pw_dir) if caller is not None and home == caller.home else home


def config_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of this process's own configuration, in the XDG configuration directory."""
    return Path(locations.config_directory(environ, str(home_directory(environ))))


def default_data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the data directory of ``sandpool up`` without ``--data-dir``, in the XDG data directory."""
    return Path(locations.data_directory(environ, str(home_directory(environ))))


def sudo_caller(environ: Mapping[str, str] = os.environ) -> User | None:
    """Return the user who called sudo; None without sudo, or if root called it."""
    if os.geteuid() != 0:
        return None
    try:
        account = pwd.getpwuid(int(environ["SUDO_UID"]))
    except (KeyError, ValueError, OverflowError):
        return None  # SUDO_UID is not set, or names no account
    if account.pw_uid == 0:
        return None
    return User(account.pw_uid, account.pw_gid, account.pw_name, Path(account.pw_dir))
