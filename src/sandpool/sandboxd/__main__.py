"""``python -m sandpool.sandboxd``: serve a sandbox until told to stop."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from types import FrameType

from sandpool.sandboxd.http import Server
from sandpool.sandboxd.root import Root
from sandpool.sandboxd.runtime_api import RuntimeApi

PORT = 8888
DEFAULT_DIRECTORY = "/app"
DEFAULT_TIMEOUT = 300.0


def main() -> int:
    root = Root(os.environ.get("SANDBOX_BASE_DIR", "").strip() or DEFAULT_DIRECTORY)
    api = RuntimeApi(root, _timeout(os.environ.get("SANDBOX_EXEC_TIMEOUT_SECONDS", "")))
    host = os.environ.get("SANDBOX_LISTEN_HOST") or "0.0.0.0"
    server = Server(socket.create_server((host, PORT), backlog=512, reuse_port=False), api.answer)

    def stop(number: int, frame: FrameType | None) -> None:
        # Not in the handler itself: it may have interrupted whoever holds a lock.
        threading.Thread(target=server.stop).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    serving = threading.Thread(target=server.serve)
    serving.start()
    serving.join()
    return 0


def _timeout(text: str) -> float:
    """What does not make sense is the default."""
    try:
        seconds = float(text)
    except ValueError:
        return DEFAULT_TIMEOUT
    return seconds if 0 < seconds < float("inf") else DEFAULT_TIMEOUT


if __name__ == "__main__":
    sys.exit(main())
