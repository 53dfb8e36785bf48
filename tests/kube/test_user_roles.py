"""Roles of users that are parts of Sandpool."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from sandpool.kube.client import MergePatch
from sandpool.kube.user_roles import grant_role
from sandpool.server.api_server import ApiServer

RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]


@pytest.mark.parametrize("namespace", ["", "default"])
async def test_edited_role_is_restored(tmp_path: Path, namespace: str) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    client, where = server.client(), namespace or None
    role, binding = (ROLE, ROLE_BINDING) if namespace else (CLUSTER_ROLE, CLUSTER_ROLE_BINDING)
    await grant_role(client, "part", "part-role", RULES, namespace)
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    await client.patch(role, "part-role", MergePatch({"rules": rules}), where)
    others = [{"kind": "Group", "apiGroup": CLUSTER_ROLE.group, "name": "all"}]
    await client.patch(binding, "part-role", MergePatch({"subjects": others}), where)
    await grant_role(client, "part", "part-role", RULES, namespace)
    assert (await client.get(role, "part-role", where))["rules"] == RULES
    (subject,) = (await client.get(binding, "part-role", where))["subjects"]
    assert (subject["kind"], subject["name"]) == ("User", "part")
    await server.stop()
