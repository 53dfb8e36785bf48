from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from sandpool.node.network.links import set_up_loopback
from sandpool.node.network.netns import NetworkNamespace, connect_inside

pytestmark = pytest.mark.isolation


async def test_connection_is_made_inside_the_namespace_by_a_thread(tmp_path: Path) -> None:
    namespace, _ = NetworkNamespace.make(tmp_path / "net", set_up_loopback)
    try:
        listening = namespace.call(lambda: socket.create_server(("127.0.0.1", 0)))
        before, threads = os.readlink("/proc/thread-self/ns/net"), threading.active_count()
        with listening, await connect_inside(namespace, listening.getsockname()) as made:
            accepted, peer = listening.accept()
            accepted.close()
            assert peer == made.getsockname()
        assert os.readlink("/proc/thread-self/ns/net") == before
        assert threading.active_count() == threads
        with pytest.raises(ConnectionRefusedError):
            await connect_inside(namespace, ("127.0.0.1", 1))
        assert os.readlink("/proc/thread-self/ns/net") == before
    finally:
        namespace.remove()


async def test_missing_namespace_changes_nothing(tmp_path: Path) -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with pytest.raises(FileNotFoundError):
        await connect_inside(NetworkNamespace(tmp_path / "none"), ("127.0.0.1", 1))
    assert os.readlink("/proc/thread-self/ns/net") == before
