"""The package index that pip uses on this machine, for builds and for sandboxes.

pip reads settings from files and from variables ``PIP_*``. A build gets those that name package indexes and the way to
them, with passwords, in a file that does not become part of the image. A running sandbox gets those of them that have
no password and name no file of the host.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

#: Settings that say where packages come from and how to reach that.
_SETTINGS: Final = (
    "index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "proxy", "timeout", "retries",
)  # fmt: skip
_ADDRESSES: Final = ("index-url", "extra-index-url", "find-links", "proxy")
_SECTIONS: Final = ("global", "install")


def host_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings of this user. Variables override files; a user's file overrides the machine's."""
    home = Path(environment.get("HOME") or "/root")
    configured = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", configured / "pip/pip.conf"]
    if named := environment.get("PIP_CONFIG_FILE"):
        files = [] if named == os.devnull else [*files, Path(named)]
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself reports it
        for section in _SECTIONS:
            if parser.has_section(section):
                found |= {name: " ".join(value.split()) for name, value in parser.items(section) if name in _SETTINGS}
    for name in _SETTINGS:
        if value := environment.get(f"PIP_{name.upper().replace('-', '_')}"):
            found[name] = value
    return found


def public_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a sandbox may see and can use: no passwords, no files of this machine."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        words = [word for word in value.split() if name not in _ADDRESSES or _is_public(word)]
        if words and name != "cert":  # the machine's certificates are in its /etc/ssl
            found[name] = " ".join(words)
    return found


def _is_public(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and "@" not in parts.netloc


def settings_file(settings: Mapping[str, str]) -> bytes:
    """Write the settings as pip reads them. Lists have a line per item."""
    lines = ["[global]"]
    for name, value in settings.items():
        items = value.split() if name in ("extra-index-url", "find-links", "trusted-host") else [value]
        lines.append(f"{name} = " + "\n    ".join(items))
    return ("\n".join(lines) + "\n").encode()
