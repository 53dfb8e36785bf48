"""The permissions of the router's data plane: it reads sandboxes and pods, and writes nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, POD, SANDBOX
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists

#: Of the ClusterRole and of its binding.
ROLE_NAME: Final = "sandpool-router"
_READ: Final = ["get", "list", "watch"]
RULES: Final = [{"apiGroups": [kind.group], "resources": [kind.plural], "verbs": _READ} for kind in (SANDBOX, POD)]


async def grant_role(client: Client, user: str) -> None:
    """Create the ClusterRole and bind it to ``user``, or restore both. Needs an administrator."""
    await _ensure(client, CLUSTER_ROLE, {"rules": RULES})
    subject = {"kind": "User", "apiGroup": CLUSTER_ROLE.group, "name": user}
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": CLUSTER_ROLE.kind, "name": ROLE_NAME}
    await _ensure(client, CLUSTER_ROLE_BINDING, {"roleRef": reference, "subjects": [subject]})


async def _ensure(client: Client, kind: ResourceType, wanted: Object) -> None:
    with suppress(AlreadyExists):
        head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": ROLE_NAME}}
        await client.create(kind, {**head, **wanted})
        return
    present = await client.get(kind, ROLE_NAME)
    if any(present.get(name) != value for name, value in wanted.items()):
        await client.patch(kind, ROLE_NAME, MergePatch(wanted))
