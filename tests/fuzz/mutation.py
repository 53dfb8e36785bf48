"""Byte mutation of corpus files.

Coverage guidance is left out on purpose: the decoders are small, the corpus has at least one file per branch of their
grammars, and tokens of the grammar get mutants past the first checks. All choices come from ``rng``, so a seed
repeats a run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

MAX_INPUT_BYTES = 1 << 13
_INTERESTING = (b"\0", b"\x7f", b"\x80", b"\xff", b"\r", b"\n", b"\r\n", b" ", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01")


def mutate(data: bytes, corpus: Sequence[bytes], tokens: Sequence[bytes], rng: random.Random) -> bytes:
    """Return ``data`` after one to eight random changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 5, 8))):
        _change(changed, corpus, tokens, rng)
    return bytes(changed[:MAX_INPUT_BYTES])


def _change(data: bytearray, corpus: Sequence[bytes], tokens: Sequence[bytes], rng: random.Random) -> None:
    start = rng.randint(0, len(data))
    end = min(len(data), start + rng.choice((1, 1, 2, 4, 16, 64)))
    match rng.randrange(8):
        case 0:
            data[start:end] = b""
        case 1 if start < len(data):
            data[start] ^= 1 << rng.randrange(8)
        case 2 if start < len(data):
            data[start] = rng.randrange(256)
        case 3:
            data[start:start] = data[start:end] * rng.choice((1, 2, 10))
        case 4:
            data[start:start] = rng.choice((*tokens, *_INTERESTING))
        case 5:
            data[start:end] = rng.choice((*tokens, *_INTERESTING))
        case 6:
            other = rng.choice(corpus)
            data[start:] = other[rng.randint(0, len(other)) :]
        case _:
            data[start:start] = rng.randbytes(rng.choice((1, 2, 8)))
