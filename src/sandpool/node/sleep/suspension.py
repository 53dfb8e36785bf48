"""Suspends the sandbox of a pod that was not used, and marks it so that the next request resumes it.

One read and one write. The write has the resourceVersion of what was read as a precondition, so it never overtakes a
user who suspends the sandbox at the same moment.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import ASLEEP_SINCE
from sandpool.api.resource import SharedObject
from sandpool.engine.clock import Clock, timestamp
from sandpool.kube.client import Client, MergePatch

_SUSPENDED: Final = "Suspended"


def sandbox_of(pod: SharedObject) -> tuple[str, str] | None:
    """The name and UID of the sandbox that controls a pod."""
    for owner in pod["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner["kind"] == SANDBOX.kind and owner["apiVersion"] == SANDBOX.api_version:
            return owner["name"], owner["uid"]
    return None


async def suspend_sandbox(client: Client, clock: Clock, pod: SharedObject) -> bool:
    """Suspend the sandbox of a pod. Returns False if it has none, or one that is deleted or suspended already. Raises
    ``ApiError`` and ``OSError``."""
    found = sandbox_of(pod)
    if found is None:
        return False
    name, uid = found
    namespace = pod["metadata"]["namespace"]
    sandbox = await client.get(SANDBOX, name, namespace)
    metadata, spec = sandbox["metadata"], sandbox.get("spec") or {}
    if metadata["uid"] != uid or metadata.get("deletionTimestamp") or spec.get("operatingMode") == _SUSPENDED:
        return False
    body = {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {ASLEEP_SINCE: timestamp(clock.now())},
        },
        "spec": {"operatingMode": _SUSPENDED},
    }
    await client.patch(SANDBOX, name, MergePatch(body), namespace)
    return True


async def is_suspended(client: Client, pod: SharedObject) -> bool:
    """Whether the sandbox of a pod is to be suspended. Raises ``ApiError`` and ``OSError``."""
    found = sandbox_of(pod)
    if found is None:
        return False
    sandbox = await client.get(SANDBOX, found[0], pod["metadata"]["namespace"])
    return bool((sandbox.get("spec") or {}).get("operatingMode") == _SUSPENDED)
