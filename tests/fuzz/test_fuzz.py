"""Fuzzing of the decoders in ``targets``: the kept corpus, inputs assembled from tokens, and mutated bytes.

``make test`` mutates for a few seconds with one seed, which continuous integration takes from the commit
(``SANDPOOL_FUZZ_SEED``); ``make fuzz`` for ``SANDPOOL_FUZZ_SECONDS`` with a new one. An input that violates an oracle
is written to the corpus, where every later run replays it, and is part of the message.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutation import mutate
from tests.fuzz.targets import TARGETS, Target

# aiohttp warns of malformed forms, beside what it answers.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:aiohttp.multipart")

CORPUS = Path(__file__).parent / "corpus"
# For a target of weight 1.
SECONDS = float(os.environ.get("SANDPOOL_FUZZ_SECONDS", "4")) / sum(target.weight for target in TARGETS)
SEED = int(os.environ.get("SANDPOOL_SEED") or os.environ.get("SANDPOOL_FUZZ_SEED") or "0")
# Processor time of one input of at most 8 KiB. Decoders take milliseconds; quadratic ones would take much longer.
MAX_SECONDS_PER_INPUT = 5.0

each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


def corpus_of(target: Target) -> list[Path]:
    return sorted((CORPUS / target.name).iterdir())


@each_target
def test_corpus_satisfies_the_oracle(target: Target) -> None:
    files = corpus_of(target)
    assert files, "a target needs inputs to mutate"
    for path in files:
        for seed in range(3):
            target.check(path.read_bytes(), random.Random(seed))


@each_target
def test_assembled_inputs_satisfy_the_oracle(target: Target) -> None:
    @given(st.lists(st.sampled_from(target.tokens) | st.binary(max_size=4), max_size=12), st.integers(0, 9))
    def check(pieces: list[bytes], seed: int) -> None:
        target.check(b"".join(pieces), random.Random(seed))

    check()


@each_target
def test_mutated_inputs_satisfy_the_oracle(target: Target) -> None:
    rng = random.Random(f"{SEED} {target.name}")
    corpus = [path.read_bytes() for path in corpus_of(target)]
    end = time.monotonic() + SECONDS * target.weight
    inputs = 0
    while time.monotonic() < end:
        inputs += 1
        data = mutate(rng.choice(corpus), corpus, target.tokens, rng)
        choices = rng.randrange(3)
        began = time.process_time()
        try:
            target.check(data, random.Random(choices))
            assert time.process_time() - began < MAX_SECONDS_PER_INPUT
        except Exception as error:
            path = CORPUS / target.name / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
            path.write_bytes(data)
            again = f"SANDPOOL_SEED={SEED} make fuzz finds it again"
            content = base64.b64encode(data).decode()
            raise AssertionError(f"{again}; the input is kept as {path.relative_to(CORPUS)}: {content}") from error
    sys.stdout.write(f"\n{target.name}: {inputs} mutated inputs")  # shown by ``make fuzz``
