"""Checks that the data directory belongs to this cluster, before anything is served from it.

An API that comes back empty by mistake is the most dangerous state of an aggregated API server. The garbage collector
of kube-controller-manager asks it for the owner of each pod, is told that there is none, and deletes the pod of every
sandbox in use. So a server with a new volume refuses to serve while the cluster has pods of sandboxes, and so does one
whose volume was written for another cluster. kube-apiserver then answers 503 for our kinds, and with that the garbage
collector deletes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sandpool.api.kinds import NAMESPACE, POD
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.kube.client import Client
from sandpool.server.auth.private_files import write_private
from sandpool.server.store.store import Store

#: The flag that overrides the refusal.
OVERRIDE: Final = "--accept-empty-volume"
_SYSTEM: Final = "kube-system"  # its UID identifies a cluster


class WrongVolume(Exception):
    """Serving from this data directory could delete sandboxes. The message says what to do."""


async def check_volume(data_dir: Path, store: Store, client: Client, *, accept_empty: bool = False) -> None:
    """Raise ``WrongVolume`` if the store may not be the one of this cluster; remember the cluster otherwise."""
    mark = data_dir / "cluster"
    cluster: str = (await client.get(NAMESPACE, _SYSTEM))["metadata"]["uid"]
    try:
        known = mark.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        known = ""
    if known and known != cluster:
        raise WrongVolume(
            f"{data_dir} was written for the cluster with the UID {known}, and this one has {cluster}: mount the "
            f"volume of this cluster. If this cluster was restored under another UID, remove the file {mark}"
        )
    if store.revision == 0 and not accept_empty:
        await _refuse_with_pods(data_dir, client)
    if not known:
        write_private(mark, f"{cluster}\n".encode())


async def _refuse_with_pods(data_dir: Path, client: Client) -> None:
    found = await client.list(POD, label_selector=SANDBOX_NAME_HASH, limit=1)
    if not found["items"]:
        return
    metadata = found["items"][0]["metadata"]
    more = (found["metadata"].get("remainingItemCount") or 0) + 1
    pod = f"{metadata['namespace']}/{metadata['name']}"
    raise WrongVolume(
        f"{data_dir} is empty, and this cluster has pods of sandboxes ({more}, among them {pod}). Serving now would "
        "delete them, because no sandbox would own them. Mount the volume that has the sandboxes, or restore it from "
        f"a backup. To give up these sandboxes, start once with {OVERRIDE}"
    )
