"""By which authority clients are known: a file, or what the API server has published of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from sandpool.api.kinds import CONFIG_MAP
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError

# Every kube-apiserver that knows clients by their certificates publishes this.
_NAMESPACE: Final = "kube-system"
_CONFIG_MAP: Final = "extension-apiserver-authentication"
_KEY: Final = "client-ca-file"


class NoAuthority(Exception):
    """Nobody can be let in; the message says why, and what to do."""


async def client_authority(client: Client, file: Path | None) -> str:
    """As PEM. Raises ``NoAuthority``, or ``OSError`` if there is a file that cannot be read."""
    if file is not None:
        return await asyncio.to_thread(file.read_text)
    place = f"{_KEY} in ConfigMap {_NAMESPACE}/{_CONFIG_MAP}"
    try:
        found = await client.get(CONFIG_MAP, _CONFIG_MAP, _NAMESPACE)
    except (ApiError, OSError) as error:
        raise NoAuthority(f"{place} cannot be read: {error}") from error
    authority: str = (found.get("data") or {}).get(_KEY) or ""
    if not authority:
        raise NoAuthority(f"there is no {place}: the API server knows no clients by certificates")
    return authority
