"""Predicates for sandboxes and for requests: creations, deletions and adoptions."""

from __future__ import annotations

from sandpool.api.labels import LAUNCH_TYPE, LAUNCH_WARM
from sandpool.api.resource import Object, SharedObject
from sandpool.kube.transport import Request


def image_of(sandbox: SharedObject) -> str:
    image: str = sandbox["spec"]["podTemplate"]["spec"]["containers"][0]["image"]
    return image


def is_warm(sandbox: Object) -> bool:
    return bool(sandbox["metadata"]["labels"].get(LAUNCH_TYPE) == LAUNCH_WARM)


def is_adoption(request: Request) -> bool:
    """Whether a request adopts a sandbox of a pool for a claim."""
    body = request.body if isinstance(request.body, dict) else {}
    references = (body.get("metadata") or {}).get("ownerReferences") or [{}]
    return request.method == "PATCH" and "/sandboxes/" in request.path and references[0].get("kind") == "SandboxClaim"


def is_creation(request: Request) -> bool:
    """Whether a request creates a sandbox."""
    return request.method == "POST" and request.path.endswith("/sandboxes")


def is_deletion(request: Request) -> bool:
    """Whether a request deletes a sandbox."""
    return request.method == "DELETE" and "/sandboxes/" in request.path


def named_in(request: Request) -> str:
    """Return the name of the object of a request."""
    if request.method == "POST":
        name: str = request.body["metadata"]["name"]
        return name
    return request.path.removesuffix("/status").rsplit("/", 1)[-1]
