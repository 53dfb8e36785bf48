"""The front behind TLS: client certificates, watches and the end of both."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandpool.engine.clock import SystemClock
from sandpool.server.serving.pki import Authority

if TYPE_CHECKING:
    from tests.server.http.conftest import Bench

MakeBench = Callable[..., "Awaitable[Bench]"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"), SystemClock())


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.ca_pem)


async def test_tokens_authenticate_over_tls(make_bench: MakeBench, authority: Authority) -> None:
    bench = await make_bench(tls=authority.tls())
    wire = await bench.connect(trusting(authority))
    for body in (b"", b"x" * 1_000_000):
        wire.request("POST", "/x", body=body)
        assert len((await wire.answer()).json["body"]) == len(body)


async def test_client_certificate_authenticates(make_bench: MakeBench, authority: Authority) -> None:
    bench = await make_bench(tls=authority.tls())
    context = trusting(authority)
    identity = authority.admin()
    context.load_cert_chain(identity.certificate, identity.key)
    wire = await bench.connect(context)
    wire.send(b"GET /x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong\r\n\r\n")
    assert (await wire.answer()).json["user"] == "sandpool-admin"
    bench.clock.advance(2 * 365 * 86400)
    wire.send(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await wire.answer()).status == 401, "a connection does not outlive its certificate"


async def test_rejections_are_sent_over_tls(make_bench: MakeBench, authority: Authority) -> None:
    bench = await make_bench(tls=authority.tls())
    wire = await bench.connect(trusting(authority))
    wire.request("POST", "/x", body=b"x" * 4_000_000)
    assert (await wire.answer()).status == 413
    bench.pass_time(6)
    await bench.until(lambda: not bench.server._connections)


async def test_plain_http_on_a_tls_port_is_dropped(make_bench: MakeBench, authority: Authority) -> None:
    bench = await make_bench(tls=authority.tls())
    wire = await bench.connect()
    wire.request()
    assert b"200" not in await wire.rest()
    good = await bench.connect(trusting(authority))
    good.request()
    assert (await good.answer()).status == 200


async def test_stop_closes_tls_connections(make_bench: MakeBench, authority: Authority, tmp_path: Path) -> None:
    bench = await make_bench(tls=authority.tls())
    wire = await bench.connect(trusting(authority))
    wire.request()
    await wire.answer()
    await bench.server.stop(10)
    assert await wire.rest() == b""


@pytest.mark.parametrize("distrust", [True, False])
async def test_replaced_certificates_are_used_by_new_connections(
    make_bench: MakeBench, authority: Authority, tmp_path: Path, distrust: bool
) -> None:
    bench = await make_bench(tls=authority.tls())
    old = await bench.connect(trusting(authority))
    old.request()
    await old.answer()
    another = Authority(tmp_path, SystemClock())
    bench.server.replace_tls(another.tls(), distrust=distrust)
    new = await bench.connect(trusting(another))
    new.request()
    assert (await new.answer()).status == 200
    if distrust:
        assert await old.rest() == b"", "its client was verified with the old certificates"
    else:
        old.request()
        assert (await old.answer()).status == 200
    with pytest.raises(ssl.SSLError):
        await bench.connect(trusting(authority))
