from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, POD, SERVICE
from sandpool.api.labels import VOLUME_STAMP
from sandpool.api.resource import ResourceType
from sandpool.kube.client import Client
from sandpool.server.aggregated.volume_record import Stamp, StampedTransport, VolumeRecord
from sandpool.testing.objects import new


class Recording:
    """A transport that returns the body of each request."""

    async def request(self, request: Any) -> Any:
        return request.body


def stamping() -> Client:
    return Client(StampedTransport(Recording(), lambda: Stamp("volume", 42)))  # type: ignore[arg-type]


@pytest.mark.parametrize("type", [POD, SERVICE, PERSISTENT_VOLUME_CLAIM])
async def test_children_of_sandboxes_tell_the_revision_of_their_creation(type: ResourceType) -> None:
    given = new(type, "a", metadata={"annotations": {"user": "value"}})
    created = await stamping().create(type, given, "ns")
    assert created["metadata"]["annotations"] == {"user": "value", VOLUME_STAMP: "volume.42"}
    assert Stamp.read(created) == Stamp("volume", 42)
    assert given["metadata"]["annotations"] == {"user": "value"}, "the object of the caller is not changed"


async def test_other_objects_are_passed_on_as_they_are() -> None:
    given = new(CONFIG_MAP, "a")
    assert await stamping().create(CONFIG_MAP, given, "ns") is given
    token = {"metadata": {"name": "a"}}
    assert await stamping().create(POD, token, "ns", name="a", subresource="binding") is token


@pytest.mark.parametrize("text", ["", "volume", "volume.", ".4", "volume.x"])
def test_unreadable_stamp_tells_nothing(text: str) -> None:
    assert Stamp.read(new(POD, "a", metadata={"annotations": {VOLUME_STAMP: text}})) is None


def test_record_is_read_as_it_was_written() -> None:
    record = VolumeRecord("volume", 42, 7)
    assert VolumeRecord.read({"metadata": {"annotations": record.annotations()}}) == record
    assert VolumeRecord.read({"metadata": {}}) is None
