"""Decodes and encodes large YAML bodies in a process of their own.

Decoding a megabyte of YAML takes more than a second. A thread would not help: it holds the interpreter lock for
``sys.getswitchinterval()`` at a time, and every step of the event loop would wait for it. A process runs at a lower
priority and under limits on CPU and memory. It takes a tenth of a second to start, so small bodies are decoded in
place. Clients that care about speed send JSON, as kubectl does.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from sandpool.kube.errors import BadRequest, TooLarge
from sandpool.server.request.body import Body, decode_yaml

#: Bodies above this many bytes go to the process; decoding so many takes some milliseconds of the event loop.
LARGE: Final = 4 * 1024
_ENCODE: Final = "encode"
_CPU_SECONDS: Final = 60
_MEMORY: Final = 4 << 30
_NICE: Final = 10
_REFUSED: Final = 3  # exit code for invalid YAML; the output holds the reason


class YamlWorker:
    """Decodes one body at a time; others queue."""

    def __init__(self) -> None:
        self._alone = asyncio.Semaphore(1)

    async def decode(self, data: bytes) -> Body:
        """As ``body.decode_yaml``. Raises ``TooLarge`` if decoding exceeds its limits."""
        value, duplicates = (await self._run(data, "decode")).splitlines()
        return Body(orjson.loads(value), tuple(orjson.loads(duplicates)))

    async def encode(self, data: bytes) -> bytes:
        """The YAML text of a JSON text. Raises ``TooLarge`` if encoding exceeds its limits."""
        return await self._run(data, _ENCODE)

    async def _run(self, data: bytes, what: str) -> bytes:
        async with self._alone:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-m", __name__, what),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={},
                cwd="/",
            )
            try:
                answer, _ = await process.communicate(data)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode == _REFUSED:
            raise BadRequest(answer.decode())
        if process.returncode:
            raise TooLarge(f"YAML of {len(data)} bytes exceeds the limits on YAML; use JSON")
        return answer


def to_yaml(document: Any) -> bytes:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: bytes = yaml.dump(document, Dumper=dumper, encoding="utf-8", allow_unicode=True, width=80)
    return text


def main() -> int:
    _limit_self()
    if _ENCODE in sys.argv:
        sys.stdout.buffer.write(to_yaml(orjson.loads(sys.stdin.buffer.read())))
        return 0
    try:
        body = decode_yaml(sys.stdin.buffer.read())
    except BadRequest as error:
        sys.stdout.buffer.write(error.message.encode())
        return _REFUSED
    sys.stdout.buffer.write(orjson.dumps(body.value) + b"\n" + orjson.dumps(body.duplicates))
    return 0


def _limit_self() -> None:
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with suppress(OSError):  # the first process that the kernel kills when memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main())
