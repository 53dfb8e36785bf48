"""``python -m sandpool.sandboxd``: serve the runtime API until SIGTERM or SIGINT.

With ``--run COMMAND`` or ``--beside COMMAND`` a command runs beside it (see ``companion``).
"""

from __future__ import annotations

import os
import sys
from _signal import SIGINT, SIGTERM, signal  # type: ignore[import-not-found]
from _socket import AF_INET, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket

from sandpool.sandboxd import binding
from sandpool.sandboxd.captured_output import output_limit
from sandpool.sandboxd.http import Server
from sandpool.sandboxd.root import Root
from sandpool.sandboxd.runtime_api import RuntimeApi

MYPY = False
if MYPY:  # most sandboxes do not need it, and typing.TYPE_CHECKING would cost more
    from sandpool.sandboxd.companion import Companion

PORT = 8888
DEFAULT_DIRECTORY = "/app"
DEFAULT_TIMEOUT = 300.0
_BACKLOG = 512  # connections that are not accepted yet


def main() -> int:
    root = _root(os.environ.get("SANDBOX_BASE_DIR", "").strip() or DEFAULT_DIRECTORY)
    api = RuntimeApi(root, _timeout(os.environ.get("SANDBOX_EXEC_TIMEOUT_SECONDS", "")), output_limit(os.environ))
    host = os.environ.get("SANDBOX_LISTEN_HOST") or ""
    if not host:  # else the pod has no loopback interface of its own
        binding.serve(binding.Binding(os.environ))
    server = Server(_listening(host or "0.0.0.0"), api.handle)
    companion: Companion | None = None

    def stop(number: int, frame: object) -> None:
        # The container ends with its command, which may take its time to end.
        if companion is None or not companion.signal(number):
            server.stop()
        else:
            companion.ends_with_command = True

    for number in (SIGTERM, SIGINT):
        signal(number, stop)
    if sys.argv[1:2] in (["--run"], ["--beside"]) and len(sys.argv) > 2:
        from sandpool.sandboxd import companion as module

        companion = module.Companion(sys.argv[2:], sys.argv[1] == "--run")
    server.serve()
    return 0


def _root(path: str) -> Root:
    """The directory of files and commands, or /tmp if the user of the image may not make it."""
    try:
        return Root(path)
    except PermissionError:
        return Root("/tmp")


def _listening(host: str) -> socket:
    listening = socket(AF_INET, SOCK_STREAM)
    listening.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    listening.bind((host, PORT))
    listening.listen(_BACKLOG)
    return listening


def _timeout(text: str) -> float:
    """Parse a positive number of seconds; anything else gives the default."""
    try:
        seconds = float(text)
    except ValueError:
        return DEFAULT_TIMEOUT
    return seconds if 0 < seconds < float("inf") else DEFAULT_TIMEOUT


if __name__ == "__main__":
    sys.exit(main())
