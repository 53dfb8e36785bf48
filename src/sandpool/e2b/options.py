"""The settings of an endpoint, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: The templates that E2B's packages ask for if their user names none.
DEFAULT_TEMPLATES: Final = ("base", "code-interpreter-v1")


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """``domain`` is what clients build the names of ports with; ``templates`` maps the names of templates to pools, and
    every other name is that of a pool."""

    domain: str
    pool: str = "python"
    templates: Mapping[str, str] = field(default_factory=dict)
    max_timeout: int = 24 * 3600
    default_timeout: int = 300
    create_timeout: float = 50.0  # clients wait a minute for an answer
    max_connections: int = 2048
    max_connections_per_address: int = 1024
    max_processes: int = 128  # of one sandbox, at once
    max_contexts: int = 16
    max_watchers: int = 32
    max_ports: int = 32
    max_body: int = 16 << 20  # bytes of a request that is held in memory
    max_upload: int = 16 << 30
    #: Where the endpoint listens for ports of sandboxes, a directory that only it can enter; None: it makes them.
    port_directory: Path | None = None

    def pool_of(self, template: str) -> str:
        """The pool that sandboxes of a template are taken from."""
        if (pool := self.templates.get(template)) is not None:
            return pool
        return self.pool if template in DEFAULT_TEMPLATES else template
