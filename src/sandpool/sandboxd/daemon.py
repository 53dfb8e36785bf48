"""``python -m sandpool.sandboxd.daemon``: serve the files API over HTTP and the process API over gRPC."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from time import monotonic
from types import FrameType

from sandpool.sandboxd import binding
from sandpool.sandboxd.captured_output import output_limit
from sandpool.sandboxd.files_api import FilesApi
from sandpool.sandboxd.http import Server
from sandpool.sandboxd.process_api import ProcessApi
from sandpool.sandboxd.root import Root

DEFAULT_DIRECTORY = "/workspace"
# Seconds between SIGTERM and the end of running processes.
_GRACE = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    flags = _flags().parse_args(arguments)
    if flags.grpc_port == flags.rest_port:
        sys.exit("--grpc-port and --rest-port must differ")
    root = Root(flags.root_dir)
    if not os.environ.get("SANDBOX_LISTEN_HOST"):  # else the pod has no loopback interface of its own
        binding.serve(binding.Binding(os.environ))
    files, processes = FilesApi(root, monotonic, flags.metadata_env_prefix), ProcessApi(root, flags.max_output_bytes)
    rest = Server(socket.create_server((flags.listen_host, flags.rest_port), backlog=512), files.handle)
    grpc = processes.server()
    grpc.add_insecure_port(f"{flags.listen_host}:{flags.grpc_port}")
    grpc.start()
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    threading.Thread(target=rest.serve, daemon=True).start()
    stopped.wait()
    files.stopping = True
    running = processes.processes.all()
    for process in running:
        process.signal(signal.SIGTERM)
    grpc.stop(_GRACE if running else 0).wait()
    rest.stop()
    return 0


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sandboxd", description="Serve commands and files of this sandbox.")
    parser.add_argument("--listen-host", default=os.environ.get("SANDBOX_LISTEN_HOST") or "0.0.0.0")
    parser.add_argument("--grpc-port", type=int, default=9090)
    parser.add_argument("--rest-port", type=int, default=8080)
    parser.add_argument("--root-dir", default=os.environ.get("SANDBOX_BASE_DIR") or DEFAULT_DIRECTORY)
    parser.add_argument("--metadata-env-prefix", default="SANDBOX_")
    parser.add_argument("--max-output-bytes", type=int, default=output_limit(os.environ))
    # Flags of agent-sandbox's own daemon that have no meaning here.
    for ignored in ("--shutdown-timeout", "--http-idle-timeout", "--stream-chunk-size"):
        parser.add_argument(ignored, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
