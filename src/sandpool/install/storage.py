"""The storage of our objects in a cluster: in custom resources, or behind an aggregated API server.

The two exclude each other. While a group is served by an APIService of ours, custom resources of the same group exist
but cannot be seen, and the garbage collector would find no owner of their pods. So an installation with the other
storage is refused.
"""

from __future__ import annotations

from typing import Final, Literal

from sandpool.api.kinds import API_SERVICE, API_SERVICES, CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, SANDPOOL
from sandpool.install.errors import InstallError
from sandpool.install.names import NAMESPACE
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.server.aggregated.storage_move import RECORD, TO

Storage = Literal["crd", "aggregated"]
DEFAULT_STORAGE: Final[Storage] = "crd"


async def present_storage(client: Client) -> Storage | None:
    """The storage of the installation in a cluster; None if there is none."""
    for name in API_SERVICES:
        try:
            registered = await client.get(API_SERVICE, name)
        except NotFound:
            continue
        if registered["spec"].get("service"):  # that of a custom resource has none
            return "aggregated"
    for type in SANDPOOL:
        try:
            await client.get(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
        except NotFound:
            continue
        return "crd"
    return None


async def choose_storage(client: Client, wanted: Storage | None) -> Storage:
    """The storage to install: the wanted one, else the present one. Raises ``InstallError`` if they differ."""
    await _refuse_during_move(client)
    present = await present_storage(client)
    if wanted is not None and present is not None and wanted != present:
        raise InstallError(
            f"this cluster keeps its sandboxes with --storage {present}\n"
            f"To change that: `sandpool storage move --to {wanted}`"
        )
    return wanted or present or DEFAULT_STORAGE


async def _refuse_during_move(client: Client) -> None:
    try:
        data = (await client.get(CONFIG_MAP, RECORD, NAMESPACE)).get("data") or {}
    except NotFound:
        return
    raise InstallError(
        f"a move of the storage is under way: finish it first, `sandpool storage move --to {data.get(TO, '')}`"
    )
