"""The systemd unit that runs ``sandpool up`` as a service."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def unit(arguments: Sequence[str], directory: Path, *, is_root: bool) -> str:
    """Return a unit that runs ``sandpool up`` with these arguments, whose relative paths begin at ``directory``: of the
    system for root, of the user's own manager otherwise."""
    command = " ".join(map(_quoted, (*_program(), "up", *arguments)))
    target = "multi-user.target" if is_root else "default.target"
    place = "/etc/systemd/system" if is_root else "~/.config/systemd/user"
    control = "systemctl" if is_root else "systemctl --user"
    return f"""\
# Write this to {place}/sandpool.service, then: {control} daemon-reload && {control} enable --now sandpool
[Unit]
Description=Sandpool: agent sandboxes on this machine
After=network.target

[Service]
# READY=1 is sent when the API serves and the controllers work.
Type=notify
NotifyAccess=main
ExecStart={command}
WorkingDirectory={_escaped(str(directory))}
Restart=on-failure
RestartSec=2
TimeoutStartSec=120
TimeoutStopSec=120
# Sandboxes run on while the service restarts, and the next start adopts them.
KillMode=process
Delegate=yes
LimitNOFILE=1048576

[Install]
WantedBy={target}
"""


def _program() -> tuple[str, ...]:
    called = Path(sys.argv[0])
    if called.name == "sandpool" and os.access(called, os.X_OK):
        return (str(called.absolute()),)
    return (sys.executable, "-m", "sandpool.cli.main")


def _quoted(word: str) -> str:
    """Quote a word of ExecStart, in which $ and % have a meaning."""
    escaped = _escaped(word).replace("$", "$$")
    if escaped and not set(escaped) & set(" \t'\";\\"):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(word: str) -> str:
    return word.replace("%", "%%")
