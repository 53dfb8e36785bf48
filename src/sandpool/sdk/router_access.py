"""The router as a client reaches it, and the signed URLs that it serves."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sandpool.router.signed_urls import PARAMETER, UrlGrant, make_token
from sandpool.sdk.errors import Refused

if TYPE_CHECKING:
    from sandpool.home.discovery import Home

#: Address and token of a router that is not that of a local home.
URL_VARIABLE: Final = "SANDPOOL_ROUTER_URL"
TOKEN_VARIABLE: Final = "SANDPOOL_ROUTER_TOKEN"
_LOCALHOST: Final = "localhost"


@dataclass(frozen=True, slots=True)
class RouterAccess:
    """Address of a router, and a token that it accepts."""

    url: str
    token: str = field(repr=False)

    @classmethod
    def find(
        cls, url: str | None, token: str | None, home: Home | None, environ: Mapping[str, str] = os.environ
    ) -> RouterAccess:
        """Take what the program gives, else the environment, else the router of the local home. Raises ``Refused``."""
        url = url or environ.get(URL_VARIABLE)
        token = token or environ.get(TOKEN_VARIABLE)
        if home is not None and url is None and home.router_url is not None and home.router_token_file is not None:
            url = home.router_url
            token = token or home.router_token_file.read_text()
        if url is None or token is None:
            raise Refused(
                "the address of a router, and a token for it, are not known",
                f"Pass router= and router_token= to the client, or set {URL_VARIABLE} and {TOKEN_VARIABLE}.",
            )
        return cls(url, token.strip())

    def sign(self, grant: UrlGrant) -> str:
        """The URL that grants this. Raises ``Refused``."""
        url = urlsplit(self.url)
        host = url.hostname or ""
        try:
            token = make_token(self.token, grant)
        except ValueError as error:
            raise Refused(f"cannot sign a URL: {error}", "Make a token with: sandpool token") from None
        port = "" if url.port is None else f":{url.port}"
        return f"{url.scheme}://{grant.label}.{_wildcard(host)}{port}/?{PARAMETER}={token}"


def _wildcard(host: str) -> str:
    """The name below which each port of a sandbox has a name of its own. Browsers know ``*.localhost``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_loopback:
        raise Refused(
            f"signed URLs need a name for the router, not the address {host}",
            "Give it a DNS name with a wildcard record, such as *.sandboxes.example, and pass router= with that name.",
        )
    return _LOCALHOST
