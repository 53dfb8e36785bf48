"""A process that writes to a store as fast as it can and reports every acknowledged write, until it is killed.

Each line on standard output is ``<key> <sequence number> <put|remove>``, written with one unbuffered write after the
store said that it is durable. Sequence numbers of a key only grow, over all runs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from sandpool.api.resource import Key
from sandpool.server.store.journal import Journal
from sandpool.server.store.store import Store

WRITERS = 16


async def write_forever(store: Store, name: str, start: int) -> None:
    key = Key("ns", name)
    sequence = start
    while True:
        sequence += 1
        padding = "x" * (sequence * 37 % 3000)
        obj = {"metadata": {"name": name, "uid": name}, "sequence": sequence, "padding": padding}
        if sequence % 5 == 0 and store.head("things", key) is not None:
            write, what = store.remove("things", key, obj), "remove"
        else:
            write, what = store.put("things", key, obj), "put"
        await write.durable
        os.write(1, f"{name} {sequence} {what}\n".encode())


async def main(directory: Path, start: int) -> None:
    store = Store(Journal(directory))
    await asyncio.gather(*(write_forever(store, f"n{i}", start) for i in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
