"""The part of an OCI image configuration that the node uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec


class _OciConfig(msgspec.Struct, rename="pascal"):
    env: list[str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    working_dir: str | None = None
    user: str | None = None
    stop_signal: str | None = None
    exposed_ports: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ImageConfig:
    env: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = ""
    user: str = ""
    stop_signal: str = ""
    ports: tuple[str, ...] = ()  # that it says to serve, such as "8888/tcp"


def parse_oci_config(document: dict[str, Any]) -> ImageConfig:
    """Parse an image configuration; absent fields are empty."""
    found = msgspec.convert(document.get("config") or {}, _OciConfig)
    pairs = (entry.partition("=") for entry in found.env or ())
    return ImageConfig(
        env={name: value for name, _, value in pairs},
        entrypoint=tuple(found.entrypoint or ()),
        command=tuple(found.cmd or ()),
        working_dir=found.working_dir or "",
        user=found.user or "",
        stop_signal=found.stop_signal or "",
        ports=tuple(found.exposed_ports or ()),
    )
