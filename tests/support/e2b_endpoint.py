"""``sandpool e2b serve`` beside a home, and programs that use it with the published packages of E2B."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from sandpool.bench.child_process import Component
from tests.support.private_network import PrivateHome

_INSTALLER: Final = Path(__file__).parents[2] / "dev" / "e2b"
_WORKER: Final = Path(__file__).with_name("e2b_worker.py")
_ADDRESS: Final = "127.0.0.1:6495"
_GREETING: Final = "serving clients of E2B at "
_TIMEOUT: Final = 60.0
_FIRST_POOL: Final = 150.0  # the first key waits for the first sandbox
#: The pool whose sandboxes have a volume at /data.
VOLUME_POOL: Final = "withvol"
VOLUME_TEMPLATE: Final = """
apiVersion: extensions.agents.x-k8s.io/v1beta1
kind: SandboxTemplate
metadata: {name: withvol}
spec:
  podTemplate:
    spec:
      containers:
      - name: runtime
        image: sandpool.local/python
        volumeMounts:
        - {name: data, mountPath: /data}
        readinessProbe: {httpGet: {path: /, port: 8888}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 64Mi}}
"""


def find_python() -> Path | None:
    """Return the interpreter with the packages; None if they are not installed."""
    found = subprocess.run([_INSTALLER, "--check"], stdout=subprocess.PIPE, text=True, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


class E2bEndpoint:
    """An endpoint in the network of a home."""

    def __init__(self, home: PrivateHome, options: Sequence[str] = ()) -> None:
        self.home = home
        self.options = options

    def __enter__(self) -> Self:
        command = self._command("serve", "--bind-address", _ADDRESS, *self.options)
        self.process = Component("sandpool e2b", command, self.home.directory / "e2b.log")
        self.process.start()
        self.process.wait_for(_GREETING, _TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop(_TIMEOUT)

    def key(self, *options: str) -> str:
        """Make an API key."""
        made = subprocess.run(
            self._command("key", "create", *options), capture_output=True, text=True, timeout=_FIRST_POOL, check=False
        )
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def make_volume_pool(self) -> None:
        """Make the pool ``VOLUME_POOL``. Its sandboxes are made for their claims."""
        self.home.kubectl("apply", "-f", "-", stdin=VOLUME_TEMPLATE)
        made = subprocess.run(
            self._sandpool("pool", "create", VOLUME_POOL, "--size", "0"),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        assert made.returncode == 0, made.stderr

    def program(self, key: str, *, asynchronous: bool = False) -> E2bProgram:
        """Start a program that uses the packages. The caller stops it."""
        home = self.home
        return E2bProgram(f"http://{_ADDRESS}", key, home.directory, prefix=home.prefix, asynchronous=asynchronous)

    def _command(self, *words: str) -> list[str | Path]:
        return self._sandpool("e2b", *words)

    def _sandpool(self, *words: str) -> list[str | Path]:
        options = ["--kubeconfig", str(self.home.server.kubeconfig)]
        prefix = ["nsenter", f"--net={self.home.network.path}"]
        return [*prefix, sys.executable, "-m", "sandpool.cli.main", *words, *options]


class ScriptFailed(AssertionError):
    """A script failed; ``kind`` is the name of its exception."""

    def __init__(self, kind: str, trace: str) -> None:
        super().__init__(trace)
        self.kind = kind


class E2bProgram:
    """A program that uses the packages. Called with a function, it runs that function's source over there, with a
    ``Packages`` and the arguments, and returns what it returns; so the function can use nothing around it.

    ``url`` is the address of the endpoint, ``directory`` the home directory, and ``prefix`` goes before the command."""

    def __init__(
        self, url: str, key: str, directory: Path, *, prefix: Sequence[str] = (), asynchronous: bool = False
    ) -> None:
        python = find_python()
        assert python is not None
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "E2B_API_URL": url,
            "E2B_SANDBOX_URL": url,
            "E2B_API_KEY": key,
            "PYTHONSAFEPATH": "1",  # a module beside the worker has the name of a package
        }
        self.is_async = asynchronous
        self._process = subprocess.Popen(
            [*prefix, python, _WORKER, "async" if asynchronous else "sync"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, script: Callable[..., Any], *arguments: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"source": inspect.getsource(script), "name": script.__name__, "arguments": arguments}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ScriptFailed("EOFError", "the program with the packages has ended")
        answer = json.loads(line)
        if "failed" in answer:
            raise ScriptFailed(answer["failed"], answer["trace"])
        return answer["returned"]

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_TIMEOUT)
        self._process.stdout.close()
