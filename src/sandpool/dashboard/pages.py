"""The HTML of the dashboard: a frame for each page, which our modules fill, and the static files beside it.

There is one template with two places, so a template engine would cost more than it does. Nothing of an object or a
sandbox is ever put into HTML here; in the browser it becomes text nodes only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, Final

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Sandpool</title>
<meta name="viewport" content="width=device-width, initial-scale=1, viewport-fit=cover">
<meta name="color-scheme" content="light dark">
<meta name="sandpool" content="{settings}">
<link rel="icon" href="/static/{version}/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/{version}/style.css">
{preloads}
<script type="module" src="/static/{version}/{module}"></script>
</head>
<body class="{module_class}">
<noscript><p class="noscript">The dashboard needs JavaScript. Without it use the command line:
<code>sandpool status</code>, <code>sandpool top</code>, <code>sandpool why</code>.</p></noscript>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    type: str


class Pages:
    """The pages and static files, read once. The version in their paths is a hash of all of them, so that browsers can
    keep them and never mix two versions."""

    def __init__(self) -> None:
        found = {
            each.name: StaticFile(each.read_bytes(), _TYPES[suffix])
            for each in files("sandpool.dashboard").joinpath("static").iterdir()
            if (suffix := each.name[each.name.rfind(".") :]) in _TYPES
        }
        self.files: Mapping[str, StaticFile] = found
        digest = hashlib.sha256(b"".join(name.encode() + found[name].content for name in sorted(found)))
        self.version: Final = digest.hexdigest()[:12]

    def app(self, settings: Mapping[str, Any]) -> str:
        """The frame of all pages of a browser that has logged in."""
        return self._page("app.js", settings)

    def login(self, settings: Mapping[str, Any]) -> str:
        return self._page("login.js", settings)

    def _page(self, module: str, settings: Mapping[str, Any]) -> str:
        # Modules are found by the imports of others, one round trip after the other, unless the page names them.
        wanted = [name for name in self.files if name.endswith(".js")] if module == "app.js" else []
        preloads = "\n".join(
            f'<link rel="modulepreload" href="/static/{self.version}/{name}">' for name in sorted(wanted)
        )
        return _PAGE.format(
            settings=escape(json.dumps(settings), quote=True),
            version=self.version,
            module=module,
            module_class=module.removesuffix(".js"),
            preloads=preloads,
        )
