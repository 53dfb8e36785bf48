"""Runs scripts with the published packages of E2B, in an interpreter that has them and not this package.

A line of input is a script as JSON, with ``source``, ``name`` and ``arguments``. A line of output is its result or its
exception. A script is a function whose first parameter is a ``Packages``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from typing import Any


class Packages:
    """The packages, and their classes in the form under test: the blocking one, or the asynchronous one in blocking
    calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        import e2b
        import e2b_code_interpreter

        self.e2b = e2b
        self.interpreter = e2b_code_interpreter
        self.loop = loop
        base, interpreter = e2b.Sandbox, e2b_code_interpreter.Sandbox
        if loop is not None:
            base = Blocking(e2b.AsyncSandbox, loop)
            interpreter = Blocking(e2b_code_interpreter.AsyncSandbox, loop)
        self.Sandbox = base
        self.Interpreter = interpreter

    def bound(self, client: Any) -> Any:
        """The class of sandboxes of a client, an ``E2B``, in the form under test."""
        return client.Sandbox if self.loop is None else Blocking(client.AsyncSandbox, self.loop)

    @property
    def is_async(self) -> bool:
        return self.loop is not None

    def wait(self, seconds: float) -> None:
        """Let callbacks of the asynchronous package run."""
        assert self.loop is not None
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def fails(self, kind: str, function: Any, *arguments: Any, **named: Any) -> Exception:
        """Return the exception of a call, whose type or a base class of it must have the name ``kind``."""
        try:
            returned = function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - the script examines it
            names = [each.__name__ for each in type(error).__mro__]
            assert kind in names, f"{kind} expected, but it was {type(error).__name__}: {error}"
            return error
        raise AssertionError(f"{kind} expected, but it returned {returned!r}")


class Blocking:
    """Wraps an asynchronous object in blocking calls."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return _blocking(getattr(self._inner, name), self._loop)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        returned = self._inner(*arguments, **named)
        if inspect.isawaitable(returned):
            returned = self._loop.run_until_complete(_finished(returned))
        return _blocking(returned, self._loop)

    def __iter__(self) -> Any:
        iterator = aiter(self._inner)
        while True:
            try:
                yield self._loop.run_until_complete(anext(iterator))
            except StopAsyncIteration:
                return


async def _finished(awaitable: Any) -> Any:
    return await awaitable


_DATA = (str, bytes, bytearray, int, float, list, tuple, dict, type(None))
_WRAPPED = ("Async", "Commands", "Filesystem", "Pty", "Git")


def _blocking(value: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """Wrap what has coroutines; return data unchanged."""
    if isinstance(value, _DATA):
        return value
    if inspect.isroutine(value) or type(value).__name__.startswith(_WRAPPED):
        return Blocking(value, loop)
    return value


def _run(packages: Packages, order: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    try:
        code = compile("from __future__ import annotations\n" + order["source"], order["name"], "exec")
        exec(code, names)
        return {"returned": names[order["name"]](packages, *order["arguments"])}
    except BaseException as error:  # noqa: BLE001 - the sender of the script gets it
        return {"failed": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}


def main() -> None:
    # Keep output of the packages or of a script apart from the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop = asyncio.new_event_loop() if sys.argv[1] == "async" else None
    packages = Packages(loop)
    for line in sys.stdin:
        answers.write(json.dumps(_run(packages, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
