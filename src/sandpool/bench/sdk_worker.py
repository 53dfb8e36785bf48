"""Runs scripts with the published SDK, in an interpreter that has the SDK and not this package.

A line of input is a script as JSON, with ``source``, ``name``, ``arguments`` and the ``config`` of the connection. A
line of output is its result or its exception. A script is a function whose first parameter is a ``Sdk``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
import traceback
from typing import Any


class Sdk:
    """The first argument of a script: ``client`` connects in the mode under test, ``package`` is the SDK itself."""

    def __init__(self, config: dict[str, Any], loop: asyncio.AbstractEventLoop | None) -> None:
        import k8s_agent_sandbox
        from k8s_agent_sandbox import models

        self.package = k8s_agent_sandbox
        self.models = models
        self._loop = loop
        fields = dict(config)
        self.config = getattr(models, fields.pop("class"))(**fields)
        self.client = self.connected(self.config)

    def connected(self, config: Any, **options: Any) -> Any:
        """Return another client, blocking or asynchronous as this worker is."""
        if self._loop is None:
            return self.package.SandboxClient(connection_config=config, **options)
        client = self._loop.run_until_complete(_made(self.package.AsyncSandboxClient, config, options))
        return Blocking(client, self._loop)

    def sink(self, file: Any) -> Any:
        """A file that can be downloaded into."""
        return file if self._loop is None else _Sink(file)

    def fails(self, kind: str, function: Any, *arguments: Any, **named: Any) -> Exception:
        """Return the exception of a call, whose type or a base class of it must have the name ``kind``."""
        try:
            returned = function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - the script examines it
            names = [each.__name__ for each in type(error).__mro__]
            assert kind in names, f"{kind} expected, but it was {type(error).__name__}: {error}"
            return error
        raise AssertionError(f"{kind} expected, but it returned {returned!r}")


class _Sink:
    def __init__(self, file: Any) -> None:
        self._file = file

    async def write(self, data: bytes) -> int:
        written: int = self._file.write(data)
        return written


class Blocking:
    """Wraps an asynchronous object in blocking calls."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return _blocking(getattr(self._inner, name), self._loop)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        returned = self._inner(*arguments, **named)
        if asyncio.iscoroutine(returned):
            returned = self._loop.run_until_complete(returned)
        return _blocking(returned, self._loop)


def _blocking(value: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """Wrap objects of the SDK and functions; return data unchanged."""
    is_ours = type(value).__module__.startswith("k8s_agent_sandbox") and not hasattr(value, "model_dump")
    return Blocking(value, loop) if is_ours or callable(value) else value


async def _made(kind: Any, config: Any, options: dict[str, Any]) -> Any:
    return kind(connection_config=config, **options)


def _run(sdk: Sdk, order: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    try:
        code = compile("from __future__ import annotations\n" + textwrap.dedent(order["source"]), order["name"], "exec")
        exec(code, names)
        return {"returned": names[order["name"]](sdk, *order["arguments"])}
    except BaseException as error:  # noqa: BLE001 - the sender of the script gets it
        return {"failed": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}


def main() -> None:
    # Keep output of the SDK or of a script apart from the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop = asyncio.new_event_loop() if sys.argv[1] == "async" else None
    modes: dict[str, Sdk] = {}  # by their configuration
    for line in sys.stdin:
        order = json.loads(line)
        mode = json.dumps(order["config"])
        if mode not in modes:
            modes[mode] = Sdk(order["config"], loop)
        answers.write(json.dumps(_run(modes[mode], order)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
