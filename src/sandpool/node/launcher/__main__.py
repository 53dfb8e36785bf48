"""``python -m sandpool.node.launcher DESCRIPTOR``: serve the agent at the other end of a socket."""

from __future__ import annotations

import socket
import sys

from sandpool.node.launcher.server import Launcher

Launcher(socket.socket(fileno=int(sys.argv[1]))).serve()
