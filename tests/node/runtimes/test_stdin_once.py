"""Input that ends with the first who attaches, as the program in a real sandbox reads it."""

from __future__ import annotations

import os

import pytest

from sandpool.node.runtimes import stdin_once
from sandpool.node.runtimes.runtime import Container
from tests.support.cgroups import is_populated
from tests.support.isolation import Rig

pytestmark = pytest.mark.isolation
READER = "echo ready; cat; echo at its end"


async def started(boxes: Rig) -> Container:
    """A container whose program waits for input."""
    container = await boxes.start("sh", "-c", READER, stdin=True, stdin_once=True)
    await boxes.output_of(container).until("ready\n")
    return container


def type_in(container: Container, text: bytes) -> None:
    descriptor = stdin_once.take(container.directory)
    assert descriptor is not None
    os.write(descriptor, text)
    os.close(descriptor)


async def test_stdin_ends_when_the_first_client_leaves(boxes: Rig) -> None:
    container = await started(boxes)
    type_in(container, b"first\n")
    await boxes.output_of(container).until("first\n")
    assert container.pid is not None, "it waits until it is told"
    stdin_once.end(container.directory)
    assert (await container.wait()).code == 0
    assert boxes.drain(container).stdout == b"ready\nfirst\nat its end\n"
    stdin_once.end(container.directory)  # twice, and without an attached client


async def test_second_client_gets_no_stdin(boxes: Rig) -> None:
    container = await started(boxes)
    type_in(container, b"first\n")
    assert stdin_once.take(container.directory) is None
    stdin_once.end(container.directory)
    assert (await container.wait()).code == 0


async def test_container_that_never_reads_keeps_running(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "exec <&-; echo closed; exec sleep 1000", stdin=True, stdin_once=True)
    await boxes.output_of(container).until("closed\n")
    stdin_once.end(container.directory)
    assert container.pid is not None
    await container.kill()
    assert (await container.wait()).code == 137


async def test_stdin_holder_ends_with_the_container(boxes: Rig) -> None:
    container = await started(boxes)
    await container.kill()
    await container.wait()
    assert not is_populated(boxes.cgroups.group(container.pod_uid, "main"))
