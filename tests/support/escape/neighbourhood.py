"""Targets on the host that a sandbox must not reach: a process, sockets, files, and another sandbox."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBES = Path(__file__).with_name("probes.py").read_text()
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    facts: dict[str, Any]
    volume: Path  # of another sandbox
    writable: Path  # a world-writable directory

    def argv(self) -> tuple[str, ...]:
        """Return the command line that runs the probes in a sandbox."""
        return ("python3", "-c", PROBES, json.dumps(self.facts))

    def with_facts(self, **facts: Any) -> Neighbourhood:
        return Neighbourhood({**self.facts, **facts}, self.volume, self.writable)


@contextmanager
def neighbourhood() -> Iterator[Neighbourhood]:
    mark, secret, other = (f"{what}-{secrets.token_hex(8)}" for what in ("mark", "secret", "other"))
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="sandpool-neighbour-"))
        stack.callback(shutil.rmtree, directory)
        directory.chmod(0o755)
        files = [directory / "secret", Path(f"/run/{mark}"), Path(f"/var/tmp/{mark}"), Path(f"/root/{mark}")]
        for file in files:
            file.write_text(secret)
            file.chmod(0o644)
            stack.callback(file.unlink)
        volume = directory / "volume"
        volume.mkdir()
        (volume / "theirs").write_text(other)
        writable = directory / "writable"
        writable.mkdir()
        writable.chmod(0o777)
        tcp = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        path = Path(f"/run/{mark}.sock")
        for address in (str(path), f"\0{mark}"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        stack.callback(path.unlink)
        path.chmod(0o777)
        victim = stack.enter_context(subprocess.Popen([mark, "1000"], executable="/bin/sleep"))
        stack.callback(victim.kill)
        launcher_secret = f"launcher-{secrets.token_hex(8)}"
        os.environ["SANDPOOL_TEST_SECRET"] = launcher_secret
        stack.callback(os.environ.pop, "SANDPOOL_TEST_SECRET")
        facts = {
            "mark": mark,
            "victim_mark": mark,
            "victim_pid": victim.pid,
            "launcher_secret": launcher_secret,
            "tcp_port": tcp.getsockname()[1],
            "addresses": addresses(),
            "network_is_own": False,
            "abstract_socket": mark,
            "unix_socket": str(path),
            "secret": secret,
            "secret_files": [str(file) for file in files],
            "other_secret": other,
            "other_file": str(volume / "theirs"),
            "writable": str(writable),
            "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES},
        }
        yield Neighbourhood(facts, volume, writable)


def addresses() -> list[str]:
    """Return the addresses of this machine except loopback."""
    shown = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    found = [line.split()[3].partition("/")[0] for line in shown.splitlines()]
    return [address for address in found if not address.startswith("127.")]
