"""The storage of our objects in a cluster: in custom resources, or behind an aggregated API server.

The two exclude each other. While a group is served by an APIService of ours, custom resources of the same group exist
but cannot be seen, and the garbage collector would find no owner of their pods. So an installation with the other
storage is refused. The same holds if the APIServices are missing while the cluster remembers a volume with objects:
that installation is aggregated, and custom resources in its place would have the collector delete all pods.
"""

from __future__ import annotations

from typing import Final, Literal

from sandpool.api.kinds import API_SERVICE, API_SERVICES, CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, LEASE, SANDPOOL
from sandpool.install import names
from sandpool.install.errors import InstallError
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.server.aggregated.storage_move import RECORD, TO
from sandpool.server.aggregated.volume_record import VolumeRecord

Storage = Literal["crd", "aggregated"]
DEFAULT_STORAGE: Final[Storage] = "crd"


async def present_storage(client: Client) -> Storage | None:
    """The storage of the installation in a cluster; None if there is none."""
    if await is_passed_on(client) or await _objects_on_volume(client):
        return "aggregated"
    for type in SANDPOOL:
        try:
            await client.get(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
        except NotFound:
            continue
        return "crd"
    return None


async def is_passed_on(client: Client) -> bool:
    """Whether an APIService of ours is there."""
    for name in API_SERVICES:
        try:
            registered = await client.get(API_SERVICE, name)
        except NotFound:
            continue
        if registered["spec"].get("service"):  # that of a custom resource has none
            return True
    return False


async def _objects_on_volume(client: Client) -> int:
    """How many objects the cluster remembers on a volume. The lease stays when the APIServices are deleted."""
    try:
        record = VolumeRecord.read(await client.get(LEASE, names.LEASE, names.NAMESPACE))
    except NotFound:
        return 0
    return record.objects if record is not None else 0


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
        data = (await client.get(CONFIG_MAP, RECORD, names.NAMESPACE)).get("data") or {}
    except NotFound:
        return
    raise InstallError(
        f"a move of the storage is under way: finish it first, `sandpool storage move --to {data.get(TO, '')}`"
    )
