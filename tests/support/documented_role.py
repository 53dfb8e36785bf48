"""Roles that the documentation shows, and accounts that have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import yaml

from sandpool.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, SANDBOX
from sandpool.api.resource import Object
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden
from sandpool.server.request.messages import User
from sandpool.testing.backend import InProcessBackend
from sandpool.testing.objects import new
from sandpool.testing.world import World

_DOCS: Final = Path(__file__).parents[2] / "docs"
_BEGIN: Final = "```yaml\napiVersion: rbac.authorization.k8s.io/v1\n"


def documented_rules(page: str, *, until: str = "```") -> list[Object]:
    """The rules of the role on a page of the documentation, up to a line of it."""
    _, found, rest = (_DOCS / page).read_text().partition(_BEGIN)
    assert found, f"{page} shows no role"
    shown, found, _ = rest.partition(until)
    assert found, f"the role in {page} has no {until!r}"
    role: Object = yaml.safe_load(shown)
    rules: list[Object] = role["rules"]
    return rules


async def grant(world: World, user: str, role: str, rules: Iterable[Object]) -> None:
    """Let a user do this everywhere."""
    reference = {"apiGroup": CLUSTER_ROLE.group, "kind": CLUSTER_ROLE.kind, "name": role}
    subject = {"apiGroup": CLUSTER_ROLE.group, "kind": "User", "name": user}
    await world.client.create(CLUSTER_ROLE, new(CLUSTER_ROLE, role, rules=list(rules)))
    binding = new(CLUSTER_ROLE_BINDING, role, roleRef=reference, subjects=[subject])
    await world.client.create(CLUSTER_ROLE_BINDING, binding)


async def account_with(world: World, name: str, rules: Iterable[Object]) -> Client:
    """A client of the in-process world that may do this everywhere and nothing else. Listing sandboxes is a part."""
    assert isinstance(world.backend, InProcessBackend)
    await grant(world, name, name, rules)
    client = world.backend.server.client(User(name, ("system:authenticated",), "uid"), name=name)

    async def granted() -> bool:
        try:
            await client.list(SANDBOX, world.namespace)
        except Forbidden:
            return False
        return True

    await world.until(granted)
    return client
