"""The role of the router's data plane."""

from __future__ import annotations

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING
from sandpool.kube.client import MergePatch
from sandpool.router.role import ROLE_NAME, RULES, grant_role
from sandpool.server.api_server import ApiServer


async def test_edited_role_is_restored(server: ApiServer) -> None:
    client = server.client()
    await grant_role(client, "router")
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    await client.patch(CLUSTER_ROLE, ROLE_NAME, MergePatch({"rules": rules}))
    others = [{"kind": "Group", "apiGroup": CLUSTER_ROLE.group, "name": "all"}]
    await client.patch(CLUSTER_ROLE_BINDING, ROLE_NAME, MergePatch({"subjects": others}))
    await grant_role(client, "router")
    assert (await client.get(CLUSTER_ROLE, ROLE_NAME))["rules"] == RULES
    (subject,) = (await client.get(CLUSTER_ROLE_BINDING, ROLE_NAME))["subjects"]
    assert (subject["kind"], subject["name"]) == ("User", "router")
