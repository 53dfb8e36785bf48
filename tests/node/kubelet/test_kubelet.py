"""The server of a node's own API: where it is found, what it shows, and when there is none."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client, MergePatch
from sandpool.node.kubelet.kubelet import Kubelet, KubeletError, KubeletOptions, local_address_toward
from sandpool.server.api_server import ApiServer
from sandpool.server.serving.pki import Authority
from tests.node.kubelet.conftest import repeat
from tests.support.fake_kubelet import KubeletRig, showing
from tests.support.fake_pod_access import FakePodAccess

AUTHENTICATION = ("extension-apiserver-authentication", "kube-system")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority", SystemClock())


@pytest.fixture
async def client(tmp_path: Path, authority: Authority) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path / "api", root_ca=authority.ca_pem)
    await server.start()
    yield server.client()
    await server.stop()


def kubelet(client: Client, directory: Path, settings: KubeletOptions) -> Kubelet:
    return Kubelet(client, SystemClock(), settings, "here", directory / "pki", lambda *_: None, FakePodAccess(repeat))


async def test_client_ca_is_read_from_the_api_server(client: Client, tmp_path: Path, authority: Authority) -> None:
    rig = KubeletRig(client, SystemClock(), tmp_path, repeat)
    rig.authority = authority
    rig.kubelet.settings = KubeletOptions(address="127.0.0.1", port=0)
    await rig.start()
    answer = await rig.ask(authority.admin(), b"GET /pods HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404")
    await rig.kubelet.stop()


@pytest.mark.parametrize("published", [None, {}, {"data": {"client-ca-file": ""}}])
async def test_without_a_client_ca_it_does_not_serve(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture, published: dict[str, object] | None
) -> None:
    if published is None:
        await client.delete(CONFIG_MAP, *AUTHENTICATION)
    else:
        name, namespace = AUTHENTICATION
        await client.patch(CONFIG_MAP, name, MergePatch({"data": None, **published}), namespace)
    made = kubelet(client, tmp_path, KubeletOptions(port=0))
    assert await made.start() is None
    await made.stop()
    assert "exec, attach, port-forward and logs are not available on this node" in caplog.text
    assert "--client-ca-file" in caplog.text


async def test_self_made_certificate_is_kept(client: Client, tmp_path: Path) -> None:
    settings = KubeletOptions(port=0, found_at="127.0.0.1")
    endpoints = []
    for _ in range(2):
        made = kubelet(client, tmp_path, settings)
        endpoints.append(await made.start())
        await made.stop()
    first, second = endpoints
    assert first is not None and second is not None
    assert (first.address, first.certificate) == ("127.0.0.1", second.certificate)
    names = ssl._ssl._test_decode_cert(str(tmp_path / "pki" / "kubelet.crt"))["subjectAltName"]  # type: ignore[attr-defined]
    assert {("DNS", "here"), ("DNS", "localhost"), ("IP Address", "127.0.0.1")} <= set(names)
    assert "kubernetes" not in str(names)


async def test_given_certificate_is_used(client: Client, tmp_path: Path, authority: Authority) -> None:
    rig = KubeletRig(client, SystemClock(), tmp_path, repeat)
    own = authority.kubelet("here", ["example.org"])
    rig.kubelet.settings = KubeletOptions(address="127.0.0.1", port=0, identity=own)
    await rig.start()
    _, writer = await asyncio.open_connection("127.0.0.1", rig.endpoint.port, ssl=showing(None))
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await rig.kubelet.stop()
    assert shown == ssl.PEM_cert_to_DER_cert(own.certificate.read_text())
    assert rig.endpoint.certificate == hashlib.sha256(shown).hexdigest()


async def test_taken_port_is_an_error(client: Client, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = kubelet(client, tmp_path, KubeletOptions(address="127.0.0.1", port=taken.getsockname()[1]))
        with pytest.raises(KubeletError, match=r"cannot listen on 127\.0\.0\.1.*in use.*--kubelet-port 0"):
            await made.start()
        await made.stop()


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"]
)
async def test_invalid_client_ca_is_an_error(client: Client, tmp_path: Path, text: str) -> None:
    (tmp_path / "ca").write_text(text)
    with pytest.raises(KubeletError, match="client CA"):
        await kubelet(client, tmp_path, KubeletOptions(port=0, client_ca=tmp_path / "ca")).start()


async def test_unreadable_client_ca_is_an_error(client: Client, tmp_path: Path) -> None:
    with pytest.raises(KubeletError, match="cannot read the client CA"):
        await kubelet(client, tmp_path, KubeletOptions(port=0, client_ca=tmp_path / "none")).start()


def test_local_address_is_that_of_the_route_to_the_api_server() -> None:
    assert local_address_toward("127.0.0.1", 6443) == "127.0.0.1"
    assert local_address_toward("localhost", 6443) in ("127.0.0.1", "::1")
    with pytest.raises(OSError):
        local_address_toward("no-such-host.invalid", 6443)
