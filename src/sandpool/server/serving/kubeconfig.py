"""The kubeconfig that the server writes for its administrator."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from sandpool.api.resource import Object
from sandpool.server.auth.private_files import write_private

NAME = "sandpool"
_HEADER = "# Written by sandpool server. Changes are lost when the server starts.\n"


class ForeignFile(Exception):
    """The path of the kubeconfig holds a file that sandpool did not write."""


def write_kubeconfig(path: Path, server: str, ca: str, token: str) -> None:
    """Write a kubeconfig with mode 0600. Never overwrites a file that sandpool did not write.

    An unchanged file is not written again: the server must start on a full disk."""
    present = path.read_text(errors="replace") if path.exists() else _HEADER
    if not present.startswith(_HEADER):
        raise ForeignFile(f"{path} exists and was not written by sandpool; choose another file with --kubeconfig")
    # JSON is YAML that commands read in a tenth of the time (kube/kubeconfig.py).
    content = f"{_HEADER}{json.dumps(document(server, ca, token), indent=2)}\n"
    if content == present:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, content.encode())


def document(server: str, ca: str, token: str, name: str = "") -> Object:
    """A kubeconfig. ``name`` is the one in the certificate, if it is not the host in the address of the server."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(ca.encode()).decode()}
    if name:
        cluster["tls-server-name"] = name
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": cluster}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "users": [{"name": NAME, "user": {"token": token}}],
    }
