"""Runs scripts with the published SDK in an interpreter of its own."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_INSTALLER = Path(__file__).parents[3] / "dev" / "sdk"  # there in a checkout, not in an installed package
_WORKER = Path(__file__).with_name("sdk_worker.py")


class MissingSdk(Exception):
    """The SDK is not installed; the message says how to install it."""


class ScriptFailed(AssertionError):
    """A script failed; ``kind`` is the name of its exception."""

    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(trace)
        self.kind = kind
        self.text = text


def find_python() -> Path:
    """Return the interpreter with the SDK. Raises ``MissingSdk``."""
    if _INSTALLER.exists():
        found = subprocess.run([_INSTALLER, "--check"], stdout=subprocess.PIPE, text=True, check=False)
        if found.returncode == 0:
            return Path(found.stdout.strip())
    raise MissingSdk("the SDK is not installed: run dev/sdk")


class SdkProcess:
    """A program that uses the SDK, synchronous or asynchronous. ``prefix`` precedes its command."""

    def __init__(self, kubeconfig: Path, home: Path, *, prefix: Sequence[str] = (), asynchronous: bool = False) -> None:
        self.asynchronous = asynchronous
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),  # kubectl keeps its discovery there
            "KUBECONFIG": str(kubeconfig),
            "PYTHONWARNINGS": "ignore",
        }
        self._process = subprocess.Popen(
            [*prefix, str(find_python()), str(_WORKER), "async" if asynchronous else "sync"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def stop(self) -> None:
        """End the program; the SDK cleans up as at the end of any program."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ScriptFailed("EOFError", "the process has ended", "the process of the SDK has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Speaker:
    """A client in one connection mode. Called with a function, it runs that function's source over there, with a
    ``worker.Sdk`` and the arguments, and returns what it returns; so the function can use nothing around it.

    ``config`` is the name of the SDK's class for the connection as ``class``, and its fields."""

    def __init__(self, process: SdkProcess, config: Mapping[str, Any]) -> None:
        self.process = process
        self.config = dict(config)

    def __call__(self, script: Callable[..., Any], *arguments: Any) -> Any:
        source = inspect.getsource(script)
        answer = self.process.ask(
            {
                "source": source[source.index("def ") :],
                "name": script.__name__,
                "arguments": arguments,
                "config": self.config,
            }
        )
        if "failed" in answer:
            raise ScriptFailed(answer["failed"], answer["text"], answer["trace"])
        return answer["returned"]
