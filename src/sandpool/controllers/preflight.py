"""Checks that an API serves the kinds and grants the permissions that the controllers need.

The check runs before anything else and covers everything at once. An operator learns in one go which kinds and
permissions are missing, instead of one by one from reconciles that fail. No result is final: definitions, roles and
controllers are often applied together in any order, so the process waits for what is missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import (
    EVENT,
    LEASE,
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SANDBOX,
    SANDBOX_CLAIM,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SANDPOOL,
    SELF_SUBJECT_ACCESS_REVIEW,
    SERVICE,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, Forbidden, NotFound, Unauthorized


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs that the controllers use on a type, or on a subresource of it."""

    type: ResourceType
    verbs: tuple[str, ...]
    subresource: str = ""

    @property
    def name(self) -> str:
        """The resource as ``kubectl auth can-i`` takes it and as kube-apiserver writes it in refusals."""
        return f"{self.type.group_resource}/{self.subresource}" if self.subresource else self.type.group_resource


_SEE: Final = ("get", "list", "watch")

REQUIRED_PERMISSIONS: Final = (
    Permission(SANDBOX, (*_SEE, "create", "patch", "delete")),
    Permission(SANDBOX, ("patch",), "status"),
    Permission(SANDBOX_CLAIM, (*_SEE, "patch", "delete")),
    Permission(SANDBOX_CLAIM, ("patch",), "status"),
    Permission(SANDBOX_WARM_POOL, _SEE),
    Permission(SANDBOX_WARM_POOL, ("patch",), "status"),
    Permission(SANDBOX_TEMPLATE, (*_SEE, "patch")),
    Permission(POD, (*_SEE, "create", "patch", "delete")),
    Permission(SERVICE, (*_SEE, "create", "patch", "delete")),
    Permission(PERSISTENT_VOLUME_CLAIM, (*_SEE, "create", "patch")),
    Permission(NETWORK_POLICY, (*_SEE, "create", "patch", "delete")),
    Permission(EVENT, ("create", "patch")),
)

# For leader election.
LEASE_PERMISSION: Final = Permission(LEASE, ("get", "create", "patch"))
# Used where granted: to know unhealthy nodes and the limits of namespaces (see ``informers.InformerSet``), and to hand
# variables of claims to warm sandboxes (see ``kube.late_binding``). Newer API servers ask for the verb create, older
# ones for get.
OPTIONAL_PERMISSIONS: Final = (
    Permission(NODE, ("list", "watch")),
    Permission(NAMESPACE, ("list", "watch")),
    Permission(POD, ("get", "create"), "portforward"),
)


async def find_missing(
    client: Client, namespace: str | None = None, *, lease_namespace: str = "", lease: str = ""
) -> str:
    """Return what keeps the controllers from working and how to fix it, in one sentence; empty if nothing does.

    The controllers work in one ``namespace`` or in all. If ``lease_namespace`` is set they take part in a leader
    election there. Without the name of the ``lease`` they need write permission for all leases of that namespace.
    """
    try:
        if absent := await _absent_kinds(client, namespace):
            return absent
        if missing := await _missing_permissions(client, REQUIRED_PERMISSIONS, namespace):
            return missing
        return (
            await _missing_permissions(client, (LEASE_PERMISSION,), lease_namespace, lease) if lease_namespace else ""
        )
    except Unauthorized:
        return "the API does not know these credentials: check the kubeconfig, or the service account of the pod"
    except ApiError as error:
        return f"the API refused to say what it has: {error}"
    except OSError as error:
        return str(error)


async def _absent_kinds(client: Client, namespace: str | None) -> str:
    async def absent(type: ResourceType) -> bool:
        try:
            await client.list(type, namespace, limit=1)
        except NotFound:
            return True
        except Forbidden:
            pass  # missing permissions are reported for all resources together
        return False

    found = await asyncio.gather(*(absent(type) for type in SANDPOOL))
    missing = [type.group_resource for type, is_absent in zip(SANDPOOL, found, strict=True) if is_absent]
    if not missing:
        return ""
    return (
        f"the API does not serve {', '.join(missing)}: `sandpool install` brings what is missing, "
        "and so does kubectl apply --server-side -f deploy/lean"
    )


async def _missing_permissions(
    client: Client, needs: tuple[Permission, ...], namespace: str | None, name: str = ""
) -> str:
    async def denied(need: Permission, verb: str) -> bool:
        attributes = {"group": need.type.group, "resource": need.type.plural, "verb": verb}
        if need.subresource:
            attributes["subresource"] = need.subresource
        if namespace:
            attributes["namespace"] = namespace
        if name and verb != "create":  # RBAC cannot restrict create by name
            attributes["name"] = name
        review: Object = {
            "apiVersion": SELF_SUBJECT_ACCESS_REVIEW.api_version,
            "kind": SELF_SUBJECT_ACCESS_REVIEW.kind,
            "spec": {"resourceAttributes": attributes},
        }
        answer = await client.create(SELF_SUBJECT_ACCESS_REVIEW, review)
        return not answer["status"]["allowed"]

    asked = [(need, verb) for need in needs for verb in need.verbs]
    answers = await asyncio.gather(*(denied(need, verb) for need, verb in asked))
    missing: dict[Permission, list[str]] = {}
    for (need, verb), is_denied in zip(asked, answers, strict=True):
        if is_denied:
            missing.setdefault(need, []).append(verb)
    if not missing:
        return ""
    listed = "; ".join(f"{', '.join(verbs)} {need.name}" for need, verbs in missing.items())
    return f"these permissions are missing, to be granted by a {_role(namespace)}: {listed}"


def _role(namespace: str | None) -> str:
    return f"Role in the namespace {namespace}" if namespace else "ClusterRole"
