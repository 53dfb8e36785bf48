"""A kubelet with simulated pods, on an API server in the same process, and clients with certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandpool.api.kinds import NODE as NODE_TYPE
from sandpool.api.kinds import POD
from sandpool.api.labels import KUBELET_CERTIFICATE
from sandpool.api.resource import Object
from sandpool.engine.clock import Clock, SystemClock
from sandpool.kube.client import Client
from sandpool.node.kubelet.kubelet import Kubelet, KubeletOptions
from sandpool.node.registration import KubeletEndpoint
from sandpool.server.api_server import ApiServer
from sandpool.server.serving.pki import Authority, Identity
from sandpool.testing.objects import new
from tests.support.fake_pod_access import FakePodAccess, Play

NODE = "apart"
# Seconds until a test that would hang fails instead.
PATIENCE = 30.0


class KubeletRig:
    """``pods`` are those of the node, ``authority`` signs the certificates of clients, ``endpoint`` is the listen
    address."""

    def __init__(self, client: Client, clock: Clock, directory: Path, play: Play) -> None:
        self.clock = clock
        self.directory = directory
        self.pod_access = FakePodAccess(play)
        self.authority = Authority(directory / "clients", clock)
        self.pods: dict[tuple[str, str], Object] = {("default", "box"): box()}
        (directory / "ca.crt").write_text(self.authority.ca_pem)
        settings = KubeletOptions(address="127.0.0.1", port=0, client_ca=directory / "ca.crt")
        self.kubelet = Kubelet(
            client, clock, settings, NODE, directory / "kubelet", lambda *key: self.pods.get(key), self.pod_access
        )

    async def start(self) -> None:
        self.endpoint = await started(self.kubelet)

    async def ask(self, identity: Identity | None, request: bytes) -> bytes:
        """Return the head of the response and the bytes after it; everything, if the kubelet closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.endpoint.port, ssl=showing(identity))
        try:
            writer.write(request)
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                if b"Content-Length: " in head:
                    length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
                    return head + await reader.readexactly(int(length))
                return head
        finally:
            writer.close()


async def started(kubelet: Kubelet) -> KubeletEndpoint:
    endpoint = await kubelet.start()
    assert endpoint is not None
    return endpoint


def node_at(endpoint: KubeletEndpoint, name: str = NODE) -> Object:
    """Return a Node with the address of its kubelet."""
    status = {
        "addresses": [{"type": "InternalIP", "address": endpoint.address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": endpoint.port}},
    }
    annotations = {KUBELET_CERTIFICATE: endpoint.certificate}
    return new(NODE_TYPE, name, metadata={"annotations": annotations}, status=status)


def box() -> Object:
    containers = [{"name": "main", "image": "a"}, {"name": "side", "image": "b"}]
    pod = new(POD, "box", spec={"nodeName": NODE, "containers": containers})
    return {**pod, "metadata": {**pod["metadata"], "namespace": "default", "uid": "1"}}


def showing(identity: Identity | None) -> ssl.SSLContext:
    """Return the TLS context of a client that presents this identity and trusts every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key)
    return context


@asynccontextmanager
async def kubelet_rig(directory: Path, play: Play) -> AsyncIterator[tuple[KubeletRig, ApiServer]]:
    """Start the kubelet together with its API server."""
    server = ApiServer(directory / "api")
    await server.start()
    rig = KubeletRig(server.client(name="node"), SystemClock(), directory, play)
    try:
        await rig.start()
        yield rig, server
    finally:
        await rig.kubelet.stop()
        await server.stop()
