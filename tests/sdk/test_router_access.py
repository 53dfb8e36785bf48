from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from sandpool.router.signed_urls import PARAMETER, UrlGrant, check_token, label_of
from sandpool.router.tokens import ALL, TokenScope, TokenSigner
from sandpool.sdk.client import AsyncClient
from sandpool.sdk.errors import Refused
from sandpool.sdk.router_access import TOKEN_VARIABLE, URL_VARIABLE, RouterAccess
from sandpool.service.service import Service
from sandpool.testing.world import World

SIGNER = TokenSigner(b"0" * 32)
TOKEN = SIGNER.make(TokenScope(ALL, (ALL,), 1 << 40))
GRANT = UrlGrant("default", "box", 8000, 1 << 40)


@pytest.mark.parametrize(
    ("router", "base"),
    [
        ("http://127.0.0.1:6490", "http://{}.localhost:6490/"),
        ("http://[::1]:6490/", "http://{}.localhost:6490/"),
        ("https://sandboxes.example", "https://{}.sandboxes.example/"),
    ],
)
def test_url_names_a_host_of_its_own_and_is_accepted(router: str, base: str) -> None:
    url = RouterAccess(router, TOKEN).sign(GRANT)
    address, _, token = url.partition(f"?{PARAMETER}=")
    assert address == base.format(GRANT.label)
    assert check_token(SIGNER, token, label_of(urlsplit(url).netloc), 0) == GRANT


def test_router_without_a_name_and_unknown_token_are_refused() -> None:
    with pytest.raises(Refused, match="wildcard"):
        RouterAccess("http://10.0.0.1:8080", TOKEN).sign(GRANT)
    with pytest.raises(Refused, match="no token of the router"):
        RouterAccess("http://127.0.0.1", "eyJhbGciOi").sign(GRANT)


def test_program_environment_and_home_are_asked_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-home\n")
    home: Any = SimpleNamespace(router_url="http://home", router_token_file=file)
    environ = {URL_VARIABLE: "http://environ", TOKEN_VARIABLE: "of-environ"}
    assert RouterAccess.find("http://given", "given", home, environ) == RouterAccess("http://given", "given")
    assert RouterAccess.find(None, None, home, environ) == RouterAccess("http://environ", "of-environ")
    assert RouterAccess.find(None, None, home, {}) == RouterAccess("http://home", "of-home")
    with pytest.raises(Refused, match=URL_VARIABLE):  # the token of a home is for its own router
        RouterAccess.find("http://given", None, home, {})
    with pytest.raises(Refused, match="router_token="):
        RouterAccess.find(None, None, None, {})
    assert "of-home" not in repr(RouterAccess.find(None, None, home, {}))


async def test_sandbox_signs_urls_of_itself(world: World, service: Service) -> None:
    await world.template(name="python")
    await world.pool(replicas=1, name="python", template="python")
    client = AsyncClient(service=service, router="http://127.0.0.1:6490", router_token=TOKEN)
    async with client.sandbox() as sandbox:
        url = await sandbox.url(8000, expires=60)
        now = client.leases.now().timestamp()
        token = urlsplit(url).query.partition("=")[2]
        grant = check_token(SIGNER, token, label_of(urlsplit(url).netloc), now)
        assert grant[:3] == (world.namespace, sandbox._sandbox.name, 8000)
        assert now + 55 < grant.until <= now + 62
    await client.leases.close()
    await client._watch.close()
