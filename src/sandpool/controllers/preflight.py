"""What the controllers must find in an API and be allowed to do there, and what a person can do if it is not so.

It is looked at before anything else, all of it at once: whoever installs the controllers learns in one go which kinds
and permissions are missing, instead of one by one from passes that fail. Nothing here is final. Definitions, roles and
controllers are often applied together, in any order, so what is missing now is waited for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from sandpool.api.kinds import (
    EVENT,
    LEASE,
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
    """Something the controllers do with objects of a type, or with a subresource of them."""

    type: ResourceType
    verbs: tuple[str, ...]
    subresource: str = ""

    @property
    def name(self) -> str:
        """As ``kubectl auth can-i`` takes it, and kube-apiserver words its refusals."""
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

# To take part in an election.
LEASE_PERMISSION: Final = Permission(LEASE, ("get", "create", "patch"))
# What they also do where they may, see ``caches.Reflection``.
OPTIONAL_PERMISSIONS: Final = (Permission(NODE, ("list", "watch")),)


async def find_missing(
    client: Client, namespace: str | None = None, *, lease_namespace: str = "", lease: str = ""
) -> str:
    """What keeps the controllers from working and what to do about it, in a sentence; empty if nothing does.

    They work in one ``namespace`` or all, and contend for a ``lease`` if it has a namespace. Without its name they must
    be allowed to write every one there."""
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
            pass  # which permissions are missing is asked for all of them together
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
        if name and verb != "create":  # what is created has no name yet, as far as permissions go
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
