"""A template that two programs write, one of them by server-side apply: what each owns must outlive a move."""

from __future__ import annotations

from typing import Any

from sandpool.api.kinds import SANDBOX_TEMPLATE
from sandpool.api.resource import Object
from sandpool.kube.client import ApplyPatch, Client, MergePatch
from sandpool.testing.objects import new

NAME = "shared"


async def create_shared_template(client: Client, namespace: str) -> None:
    await _apply(client, namespace, "0", also=True)
    patch = MergePatch({"metadata": {"labels": {"by": "bob"}}})
    await client.patch(SANDBOX_TEMPLATE, NAME, patch, namespace, field_manager="bob")


async def change_shared_template(client: Client, namespace: str, image: str) -> None:
    """Apply another image, without the fields that only the apply before had. Fails if they stay, if another manager
    owns the image, and if the apply takes what it does not own. Then restore these fields."""
    await _apply(client, namespace, image, also=False)
    changed = await client.get(SANDBOX_TEMPLATE, NAME, namespace)
    labels = changed["metadata"]["labels"]  # a controller adds one
    assert "also" not in labels
    assert labels["by"] == "bob"
    pod = changed["spec"]["podTemplate"]["spec"]
    assert [each["image"] for each in pod["containers"]] == [f"example.com/image:{image}"]
    assert "hostname" not in pod
    await _apply(client, namespace, image, also=True)


async def _apply(client: Client, namespace: str, image: str, *, also: bool) -> None:
    """Without force: a field that another manager owns is a conflict."""
    metadata: Object = {"namespace": namespace, **({"labels": {"also": "alice"}} if also else {})}
    pod: dict[str, Any] = {"containers": [{"name": "main", "image": f"example.com/image:{image}"}]}
    if also:
        pod["hostname"] = "alice"
    template = new(SANDBOX_TEMPLATE, NAME, metadata=metadata, spec={"podTemplate": {"spec": pod}})
    await client.patch(SANDBOX_TEMPLATE, NAME, ApplyPatch(template), namespace, field_manager="alice")
