"""Large YAML bodies, decoded in a process of their own.

A megabyte of YAML takes more than a second to decode. In a thread that second is everybody's all the same: who decodes
holds the interpreter's lock for ``sys.getswitchinterval()`` at a time, and every step of the event loop waits for it. A
process takes nobody's time, gives way to who serves, and what a body can use up of the machine is limited. One takes a
tenth of a second to start, so what is small is decoded where it is.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson

from sandpool.kube.errors import BadRequest, TooLarge
from sandpool.server.request.body import Body, decode_yaml

#: Bytes from which on a body is large. So much takes a tenth of a second, too.
LARGE: Final = 64 * 1024
_SECONDS: Final = 60  # of a processor
_MEMORY: Final = 4 << 30
_NICE: Final = 10
_REFUSED: Final = 3  # the exit code if it is not YAML; then the answer says why


class YamlWorker:
    """Decodes one body at a time; others wait."""

    def __init__(self) -> None:
        self._alone = asyncio.Semaphore(1)

    async def decode(self, data: bytes) -> Body:
        """As ``bodies.decode_yaml``. Raises ``TooLarge`` if it takes more than it may."""
        async with self._alone:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-m", __name__),
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
            raise TooLarge(f"YAML of {len(data)} bytes that takes too much to decode; send it as JSON")
        value, duplicates = answer.splitlines()
        return Body(orjson.loads(value), tuple(orjson.loads(duplicates)))


def main() -> int:
    _give_way()
    try:
        body = decode_yaml(sys.stdin.buffer.read())
    except BadRequest as error:
        sys.stdout.buffer.write(error.message.encode())
        return _REFUSED
    sys.stdout.buffer.write(orjson.dumps(body.value) + b"\n" + orjson.dumps(body.duplicates))
    return 0


def _give_way() -> None:
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with suppress(OSError):  # the first to go when memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main())
