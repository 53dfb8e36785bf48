"""The kubeconfig the server writes for its administrator."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from sandpool.server.auth.private_files import write_private

NAME = "sandpool"
_HEADER = "# Written by sandpool server. Changes are lost when the server starts.\n"


class ForeignFile(Exception):
    """There is a file of somebody else where the kubeconfig should go."""


def write_kubeconfig(path: Path, server: str, ca: str, token: str) -> None:
    """Write a kubeconfig that only its owner can read. A file that was not written by a server is not touched."""
    if path.exists() and not path.read_text(errors="replace").startswith(_HEADER):
        raise ForeignFile(f"{path} exists and was not written by sandpool; choose another file with --kubeconfig")
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [
            {
                "name": NAME,
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(ca.encode()).decode(),
                },
            }
        ],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "users": [{"name": NAME, "user": {"token": token}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, (_HEADER + yaml.safe_dump(document, sort_keys=False)).encode())
