"""Roles of users that are parts of Sandpool: created once, and restored by every start."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists


async def grant_role(client: Client, user: str, name: str, rules: Sequence[Object], namespace: str = "") -> None:
    """Create a role with these rules and bind it to ``user``, or restore both: a ClusterRole, or a Role in
    ``namespace``. Needs an administrator."""
    role, binding = (ROLE, ROLE_BINDING) if namespace else (CLUSTER_ROLE, CLUSTER_ROLE_BINDING)
    await _ensure(client, role, name, namespace, {"rules": list(rules)})
    subject = {"kind": "User", "apiGroup": role.group, "name": user}
    reference = {"apiGroup": role.group, "kind": role.kind, "name": name}
    await _ensure(client, binding, name, namespace, {"roleRef": reference, "subjects": [subject]})


async def _ensure(client: Client, kind: ResourceType, name: str, namespace: str, wanted: Object) -> None:
    where = namespace or None
    with suppress(AlreadyExists):
        head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
        await client.create(kind, {**head, **wanted}, where)
        return
    present = await client.get(kind, name, where)
    if any(present.get(field) != value for field, value in wanted.items()):
        await client.patch(kind, name, MergePatch(wanted), where)
