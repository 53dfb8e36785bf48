"""Passes that are noted in a log: when, over what, and how they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from sandpool.controllers.traced import noted
from sandpool.engine.cache.store import Key
from sandpool.engine.controller import DONE, Result
from sandpool.engine.jsonl import JsonlWriter
from sandpool.testing.clock import ManualClock

BOX = Key("ns", "box")


async def note(path: Path, ends: Result | Exception) -> Any:
    clock, log = ManualClock(), JsonlWriter(path)

    async def reconcile(key: Key) -> Result:
        assert key == BOX
        if isinstance(ends, Exception):
            raise ends
        return ends

    try:
        await noted(reconcile, "sandbox", log, clock)(BOX)
    finally:
        log.close()


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        (DONE, {}),
        (Result(2.5), {"requeueAfter": 2.5}),
        (ValueError("broken"), {"problem": "broken"}),
        (TimeoutError(), {"problem": "TimeoutError"}),
    ],
)
async def test_how_a_pass_ended(tmp_path: Path, ends: Result | Exception, told: dict[str, Any]) -> None:
    path = tmp_path / "passes.log"
    if isinstance(ends, Exception):
        with pytest.raises(type(ends)):
            await note(path, ends)
    else:
        await note(path, ends)
    (line,) = path.read_bytes().splitlines()
    entry = orjson.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {"pass": "sandbox", "namespace": "ns", "name": "box", "ms": 0.0, **told}
