"""Check that stored objects fit new CustomResourceDefinitions.

The full definitions list every field of a pod; the API server prunes all other fields. So before a cluster changes from
the lean definitions to the full ones, every stored object is checked, and nothing changes if a field would be lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION, SANDBOX, SANDBOX_TEMPLATE
from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.api.sandbox_spec import Profile
from sandpool.api.schema.admit import compile_admission
from sandpool.api.schema.shape import from_openapi
from sandpool.install.errors import InstallError
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound

# The kinds that contain a pod spec.
_HOLDERS: Final = (SANDBOX, SANDBOX_TEMPLATE)
_PAGE: Final = 500
_SHOWN: Final = 10


async def check_fit(client: Client, definitions: list[Object]) -> None:
    """Raise ``InstallError`` if fields would be dropped or rejected; the message lists them."""
    wanted = {each["metadata"]["name"]: each for each in definitions}
    misfits = [
        misfit
        for type in _HOLDERS
        if type.group_resource in wanted
        async for misfit in _misfits(client, type, _schema(wanted[type.group_resource]))
    ]
    if misfits:
        shown = "\n".join(f"  {each}" for each in misfits[:_SHOWN])
        more = f"\n  and {len(misfits) - _SHOWN} more" if len(misfits) > _SHOWN else ""
        raise InstallError(
            f"these objects do not fit the full definitions, which would drop or refuse the fields:\n{shown}{more}\n"
            "Change them, or stay with --profile lean"
        )


async def _misfits(client: Client, type: ResourceType, schema: Object) -> AsyncIterator[str]:
    if _takes_anything(schema) or await present_profile(client, type) != "lean":
        return
    admit = compile_admission(from_openapi(schema))
    async for each in all_of(client, type):
        admitted = admit(each)
        metadata = each["metadata"]
        for finding in (*(f"unknown field {path}" for path in admitted.unknown), *map(str, admitted.causes)):
            yield f"{type.singular} {metadata['namespace']}/{metadata['name']}: {finding}"


async def present_profile(client: Client, type: ResourceType = SANDBOX) -> Profile | None:
    """The profile of the installed definition; None if the cluster does not have the kind."""
    try:
        present = await client.get(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
    except NotFound:
        return None
    return "lean" if _takes_anything(_schema(present)) else "full"


async def all_of(client: Client, type: ResourceType) -> AsyncIterator[Object]:
    """All objects of a type in the cluster, page by page."""
    token: str | None = None
    while True:
        page = await client.list(type, limit=_PAGE, continue_token=token)
        for item in page["items"]:
            yield item
        token = page["metadata"].get("continue")
        if not token:
            return


def _schema(definition: SharedObject) -> Object:
    """The schema of the storage version."""
    stored = next(each for each in definition["spec"]["versions"] if each["storage"])
    schema: Object = stored["schema"]["openAPIV3Schema"]
    return schema


def _takes_anything(schema: Object) -> bool:
    node: Any = schema
    for name in ("spec", "podTemplate", "spec"):
        node = node["properties"][name]
    return bool(node.get("x-kubernetes-preserve-unknown-fields"))
