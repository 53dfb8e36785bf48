"""Measures each step of a patch alone, to show where one write spends its time.

The result is a sum of parts and not a profile, because a profiler inflates the cost of many small calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson

from sandpool.api.kinds import SANDBOX
from sandpool.api.resource import Key
from sandpool.bench.figures import Figure
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.patches import merge_patch_object
from sandpool.server.api_server import ApiServer
from sandpool.server.apply import reset_fields, track_update
from sandpool.server.registry.decoding import fit
from sandpool.server.request.request_info import parse
from sandpool.server.store.entry import Entry


def microseconds(call: Callable[[], Any], *, times: int = 2000, rounds: int = 7) -> float:
    """Return the best of several averages: the cost without interference."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - started) / times)
    return best * 1e6


async def patch_steps(server: ApiServer, client: Client, namespace: str, name: str) -> list[Figure]:
    """Return the steps of a merge patch of one annotation of an existing Sandbox."""
    await client.patch(SANDBOX, name, MergePatch({"metadata": {"annotations": {"bench": "before"}}}), namespace)
    resource = server.resources.get(SANDBOX.group, SANDBOX.version, SANDBOX.plural)
    entry = server.store.get(SANDBOX.group_resource, Key(namespace, name))
    assert resource is not None
    assert entry is not None
    old, body = entry.decode(), {"metadata": {"annotations": {"bench": "after"}}}
    new = merge_patch_object(old, body)
    encoded, path = entry.encoded, SANDBOX.path(namespace, name)
    reset = reset_fields(resource.type, "", custom=True)

    def track() -> object:
        return track_update(
            old,
            new,
            shape=resource.typed,
            manager="bench",
            subresource="",
            api_version=SANDBOX.api_version,
            now="2030-01-01T00:00:00Z",
            reset=reset,
        )

    steps: dict[str, Callable[[], object]] = {
        "read the path": lambda: parse("PATCH", path, {}),
        "apply the merge patch": lambda: merge_patch_object(old, body),
        "validate what changed": lambda: fit(resource, new, old, "Warn", []),
        "track field ownership": track,
        "encode the object": lambda: orjson.dumps(new),
        "make the entry": lambda: Entry.of(Key("n", "n"), 1, 1, new, encoded),
        "(decode it, if it is not at hand)": lambda: orjson.loads(encoded),
    }
    return [Figure(f"one patch: {step}", microseconds(call), "µs") for step, call in steps.items()]
