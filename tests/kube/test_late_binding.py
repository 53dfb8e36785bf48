"""Late binding from the outside: the messages, and the two ways to sandboxd."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.api.kinds import POD
from sandpool.api.resource import Object, SharedObject
from sandpool.kube import kubeconfig
from sandpool.kube.client import MergePatch
from sandpool.kube.late_binding import (
    MAX_BYTES,
    PORT,
    BindingRefused,
    BindingUnavailable,
    BindRequest,
    LineStream,
    LocalBinder,
    StreamBinder,
    through_pod_access,
    through_port_forward,
)
from sandpool.kube.pod_access import StreamClient
from sandpool.kube.pod_client import HttpPodClient
from sandpool.sandboxd import binding
from sandpool.server.serving.daemon import Daemon, ServerOptions
from sandpool.testing.objects import new
from tests.support.fake_pod_access import FakePodAccess

BOX: Object = {"metadata": {"namespace": "default", "name": "box", "uid": "u1"}, "spec": {"nodeName": "node"}}
REQUEST = BindRequest(BOX, "claim-1", {"TOKEN": "canary"})


class PlayedStream:
    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.sent = b""

    async def receive(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    async def send(self, data: bytes) -> None:
        self.sent += data


async def answered(*pieces: bytes) -> PlayedStream:
    stream = PlayedStream(*pieces)

    @asynccontextmanager
    async def dial(pod: SharedObject) -> AsyncIterator[LineStream]:
        yield stream

    await StreamBinder(dial).bind(REQUEST)
    return stream


async def test_request_names_pod_and_claim() -> None:
    stream = await answered(b'{"claim": "cl', b'aim-1"}\n')
    assert json.loads(stream.sent) == {"bind": {"claim": "claim-1", "pod": "u1", "values": {"TOKEN": "canary"}}}
    assert stream.sent.endswith(b"\n")


async def test_refusal_has_its_reason() -> None:
    with pytest.raises(BindingRefused, match="another claim") as refused:
        await answered(b'{"error": "BoundToAnother", "message": "..."}\n')
    assert refused.value.reason == "BoundToAnother"


async def test_text_of_a_sandbox_is_not_repeated() -> None:
    with pytest.raises(BindingRefused) as refused:
        await answered(b'{"error": "canary", "message": "canary"}\n')
    assert "canary" not in f"{refused.value!r} {refused.value} {refused.value.reason}"


async def test_acknowledgement_of_another_claim_is_none() -> None:
    with pytest.raises(BindingRefused, match="another claim"):
        await answered(b'{"claim": "claim-2"}\n')


@pytest.mark.parametrize(
    "pieces", [(), (b'{"claim": "claim-1"}',), (b"nope\n",), (b"[]\n",), (b"x" * (MAX_BYTES + 1),)]
)
async def test_answer_that_is_none_counts_as_lost(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(ConnectionError):
        await answered(*pieces)


def test_values_are_not_in_the_text_of_a_request() -> None:
    assert "canary" not in repr(REQUEST)
    assert "canary" not in str(REQUEST)


@pytest.fixture
def sandboxd() -> Iterator[int]:
    listening = binding.serve(binding.Binding({}), 0)
    assert listening is not None
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


async def play(command: tuple[str, ...], client: StreamClient) -> int:
    return 0


@pytest.fixture
def pod_access() -> FakePodAccess:
    return FakePodAccess(play)


async def test_pod_access_reaches_sandboxd(pod_access: FakePodAccess, sandboxd: int) -> None:
    binder = LocalBinder(lambda: pod_access)
    with pytest.raises(BindingUnavailable, match="refused"):
        await binder.bind(REQUEST)
    pod_access.ports[PORT] = sandboxd
    await binder.bind(REQUEST)
    await binder.bind(REQUEST)
    with pytest.raises(BindingRefused):
        await binder.bind(BindRequest(BOX, "claim-2", {}))


async def test_pod_elsewhere_is_bound_elsewhere(pod_access: FakePodAccess, sandboxd: int) -> None:
    pod_access.ports[PORT] = sandboxd
    elsewhere = StreamBinder(through_pod_access(pod_access))
    with pytest.raises(BindingUnavailable, match="another process"):
        await LocalBinder(lambda: None).bind(REQUEST)
    await LocalBinder(lambda: None, elsewhere).bind(REQUEST)


@pytest_asyncio.fixture
async def pods(pod_access: FakePodAccess, tmp_path: Path) -> AsyncIterator[HttpPodClient]:
    daemon = Daemon(ServerOptions(tmp_path / "data", port=0))
    await daemon.start()
    daemon.server.pod_access = pod_access
    client = daemon.server.client()
    spec = {"nodeName": "node", "containers": [{"name": "main", "image": "a"}]}
    await client.create(POD, new(POD, "box", spec=spec), "default")
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(POD, "box", MergePatch({"status": status}), "default", subresource="status")
    yield HttpPodClient(kubeconfig.load(daemon.kubeconfig))
    await daemon.stop(0)


async def test_port_forward_reaches_sandboxd(pods: HttpPodClient, pod_access: FakePodAccess, sandboxd: int) -> None:
    binder = StreamBinder(through_port_forward(pods))
    with pytest.raises(BindingUnavailable, match="nothing listens on it"):
        await binder.bind(REQUEST)
    pod_access.ports[PORT] = sandboxd
    await binder.bind(REQUEST)
    with pytest.raises(BindingRefused):
        await binder.bind(BindRequest(BOX, "claim-2", {}))
    with pytest.raises(BindingUnavailable, match='pods "other" not found'):
        await binder.bind(BindRequest({"metadata": {**BOX["metadata"], "name": "other"}, "spec": {}}, "claim-1", {}))
