"""Checks that the data directory belongs to this cluster, before anything is served from it.

An API that comes back empty, or with an earlier state, by mistake is the most dangerous state of an aggregated API
server. The garbage collector of kube-controller-manager asks it for the owner of each pod, is told that there is none,
and deletes the pod of every sandbox in use. So a server with a new volume refuses to serve while the cluster has pods
of sandboxes, and so does one whose volume was written for another cluster, or is a copy that is older than a pod: a
pod is created after its sandbox, and a sandbox that the store lacks was deleted by a later write. kube-apiserver then
answers 503 for our kinds, and with that the garbage collector deletes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sandpool.api.kinds import NAMESPACE, POD, SANDBOX
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.resource import Key, SharedObject
from sandpool.kube.client import Client
from sandpool.server.auth.private_files import write_private
from sandpool.server.store.store import Store

#: The flag that overrides the refusal.
OVERRIDE: Final = "--accept-lost-sandboxes"
_SYSTEM: Final = "kube-system"  # its UID identifies a cluster
_PAGE: Final = 500
_SHOWN: Final = 5


class WrongVolume(Exception):
    """Serving from this data directory could delete sandboxes. The message says what to do."""


async def check_volume(data_dir: Path, store: Store, client: Client, *, accept_lost: bool = False) -> None:
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
    if not accept_lost:
        await (_refuse_newer_pods(data_dir, store, client) if store.revision else _refuse_with_pods(data_dir, client))
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


async def _refuse_newer_pods(data_dir: Path, store: Store, client: Client) -> None:
    """Refuse if the cluster has pods that were created after the last write to the store, for sandboxes it has not.

    An older pod without a sandbox is that of one that was deleted, and is for the garbage collector."""
    lost = [pod async for pod in _pods(client) if _is_newer(pod, store.written) and not _has_sandbox(pod, store)]
    if not lost:
        return
    names = ", ".join(f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in lost[:_SHOWN])
    written = datetime.fromtimestamp(store.written, UTC)
    raise WrongVolume(
        f"{data_dir} is older than this cluster: its last write was at {written:%Y-%m-%d %H:%M:%S} UTC, and "
        f"{len(lost)} pods are of sandboxes that were created later (among them {names}). Serving now would delete "
        "them. Mount the volume with the newest state, or restore a newer backup. To give up these sandboxes, start "
        f"once with {OVERRIDE}"
    )


async def _pods(client: Client) -> AsyncIterator[SharedObject]:
    token: str | None = None
    while True:
        page = await client.list(POD, label_selector=SANDBOX_NAME_HASH, limit=_PAGE, continue_token=token)
        for pod in page["items"]:
            yield pod
        token = page["metadata"].get("continue")
        if not token:
            return


def _is_newer(pod: SharedObject, written: float) -> bool:
    metadata = pod["metadata"]
    if written == 0 or "deletionTimestamp" in metadata:
        return False
    return datetime.fromisoformat(metadata["creationTimestamp"]).timestamp() > written


def _has_sandbox(pod: SharedObject, store: Store) -> bool:
    """Whether the store has the sandbox that controls a pod; true for a pod that no sandbox controls."""
    metadata = pod["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        ours = owner["kind"] == SANDBOX.kind and owner["apiVersion"].startswith(f"{SANDBOX.group}/")
        if ours and owner.get("controller"):
            entry = store.get(SANDBOX.group_resource, Key(metadata["namespace"], owner["name"]))
            return entry is not None and entry.uid == owner["uid"]
    return True
