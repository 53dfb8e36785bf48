"""``make bench-calls``: counts the Python function calls of a warm claim, by layer and by kind of API request.

API, controllers, a simulated node and the load run in this process, on uvloop, as in ``sandpool bench claims --home
inprocess`` and in the home. Of the work of uvloop, which is compiled, only the methods that Python calls are counted.
A burst of claims meets a pool twice its size. Calls are counted as ``cProfile`` counts them: every call of a Python or
C function, and every resumption of a coroutine. They hardly depend on the machine. The journal's thread is not counted.

A call belongs to the layer of its function, a call of any other function to the layer that called it. A call inside
of an API request belongs to the kind of that request.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Final

import uvloop

from sandpool.bench.environments import in_process
from sandpool.bench.load import Load
from sandpool.bench.members import Members
from sandpool.bench.namespace_setup import POOL, Ground
from sandpool.engine.clock import SystemClock

NAMESPACE: Final = "bench-calls"
SILENCE: Final = 3.0  # seconds: annotations and events are written late
_SOURCES: Final = "/sandpool/"

_LOAD: Final = "load"
#: Layers by the beginning of a module's path below ``sandpool/``; the first match counts.
LAYERS: Final = (
    ("kube/client", "client"),
    ("kube/transport", "client"),
    ("server/serving/inprocess", "transport"),
    ("server/serving/audit", "audit"),
    ("server/http", "audit"),
    ("server/request/request_info", "paths"),
    ("server/auth", "authorization"),
    ("server/request/admission", "authorization"),
    ("server/request/options", "options"),
    ("server/request/views", "answers"),
    ("server/request", "handler"),
    ("server/registry/tracking", "ownership"),
    ("server/registry/watch", "watches"),
    ("server/registry", "verbs"),
    ("kube/patches", "patches"),
    ("kube/strategic", "patches"),
    ("kube/jsonpatch", "patches"),
    ("kube/sharing", "patches"),
    ("api/schema", "schemas"),
    ("server/kinds", "rules of kinds"),
    ("server/apply", "ownership"),
    ("server/store/watch", "watches"),
    ("server/store", "store"),
    ("server/controllers", "server's controllers"),
    ("server", "server, other"),
    ("engine/cache", "caches"),
    ("api/views", "caches"),
    ("engine", "engine"),
    ("controllers", "controllers"),
    ("node", "node"),
    ("bench", _LOAD),
)
_ROOT: Final = "event loop"


def layer_of(code: CodeType) -> str | None:
    """The layer of a function; None for one that belongs to its caller's."""
    path = code.co_filename.rpartition(_SOURCES)
    if not path[1]:
        return None
    return next((layer for prefix, layer in LAYERS if path[2].startswith(prefix)), None)


class CallCounter:
    """Counts calls while it is on, as ``with counter:``."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()  # by request and layer
        self.functions: Counter[tuple[str, CodeType | str]] = Counter()  # by layer, the functions that are called
        self.requests: Counter[str] = Counter()
        self._layers: dict[CodeType, str | None] = {}
        self._stack: list[tuple[str, str]] = []

    def __enter__(self) -> CallCounter:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            if frame.f_back is None or not self._stack:
                self._stack.clear()
            request, layer = self._stack[-1] if self._stack else ("", _ROOT)
            try:
                own = self._layers[code]
            except KeyError:
                own = self._layers[code] = layer_of(code)
            if own == "client" and not request and code.co_name in ("create", "patch", "delete", "get", "list"):
                request = _request(frame)
                if frame.f_lasti < 5:
                    self.requests[request] += 1
            place = (request, own or layer)
            self._stack.append(place)
            self.calls[place] += 1
            self.functions[place[1], code] += 1
        elif event == "return":
            if self._stack:
                self._stack.pop()
        elif event == "c_call":
            place = self._stack[-1] if self._stack else ("", _ROOT)
            self.calls[place] += 1
            self.functions[place[1], getattr(argument, "__qualname__", repr(argument))] += 1

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    def of_layer(self, layer: str) -> int:
        return sum(number for (_, each), number in self.calls.items() if each == layer)


def _request(frame: FrameType) -> str:
    """The request that a method of the client sends: ``patch sandboxes/status``."""
    arguments = frame.f_locals
    subresource = arguments.get("subresource")
    kind = arguments["type"].plural + (f"/{subresource}" if subresource else "")
    return f"{frame.f_code.co_name} {kind}"


def run(claims: int, directory: Path, silence: float = SILENCE) -> tuple[CallCounter, CallCounter]:
    """``count`` on the event loop of the home."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(count(claims, directory, silence))


async def count(claims: int, directory: Path, silence: float = SILENCE) -> tuple[CallCounter, CallCounter]:
    """Serve a burst of claims; the calls until the last is ready, and those from then until ``silence`` seconds after
    the pool is full."""
    clock, rng = SystemClock(), Random(1)
    async with in_process(directory, clock, rng) as place:
        ground = Ground(place.client, clock, NAMESPACE, "", lambda text: None)
        async with ground, Members(place.client, clock, NAMESPACE, POOL) as members:
            await ground.make_pool(2 * claims)
            await members.full(2 * claims, 600)
            async with Load(place.client, clock, NAMESPACE, POOL) as warm:  # compiled and cached once
                await warm.run([[0.0]])
            await members.full(2 * claims, 60)
            await clock.sleep(silence)
            load = Load(place.client, clock, NAMESPACE, POOL)
            load.outcome.claims += warm.outcome.claims  # their names are taken
            async with load:
                with CallCounter() as until_ready:
                    await load.run([[0.0] * claims])
                with CallCounter() as after:
                    await members.full(2 * claims, 600)
                    await clock.sleep(silence)
    return until_ready, after


def table(counted: CallCounter, claims: int) -> str:
    """Calls per claim: a row per layer, a column per kind of request that occurs at least once in two claims."""
    requests = [name for name, number in counted.requests.most_common() if number >= claims / 2]
    lines = [
        "| layer | all | " + " | ".join(requests) + " | outside of requests |",
        "|---|" + "---|" * (len(requests) + 2),
    ]
    layers: Counter[str] = Counter()
    for (_, layer), number in counted.calls.items():
        layers[layer] += number
    for layer, number in layers.most_common():
        cells = [counted.calls[request, layer] / claims for request in (*requests, "")]
        lines.append(f"| {layer} | {number / claims:,.0f} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + " |")
    sums = [sum(n for (request, _), n in counted.calls.items() if request == each) for each in (*requests, "")]
    lines.append(f"| all | {counted.total / claims:,.0f} | " + " | ".join(f"{n / claims:,.0f}" for n in sums) + " |")
    return "\n".join(lines)


def functions(counted: CallCounter, claims: int, most: int) -> str:
    """The functions that are called most often."""
    found = counted.functions.most_common(most)
    return "\n".join(f"{number / claims:8.1f}  {layer:22} {_name(function)}" for (layer, function), number in found)


def _name(function: CodeType | str) -> str:
    if isinstance(function, str):
        return f"({function})"
    path = function.co_filename.rpartition(_SOURCES)[2]
    return f"{path}:{function.co_firstlineno} {function.co_qualname}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-calls", description=__doc__)
    parser.add_argument("--claims", type=int, default=100)
    parser.add_argument("--functions", type=int, default=0, help="print so many of the functions called most often")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        until_ready, after = run(options.claims, Path(directory))
    for title, counted in (("until the last Ready", until_ready), ("from then until quiescence", after)):
        sys.stdout.write(f"\nCalls per claim {title}\n\n{table(counted, options.claims)}\n")
        if options.functions:
            sys.stdout.write(f"\n{functions(counted, options.claims, options.functions)}\n")
    total = (until_ready.total + after.total) / options.claims
    load = (until_ready.of_layer(_LOAD) + after.of_layer(_LOAD)) / options.claims
    sys.stdout.write(f"\nIn all {total:,.0f} calls per claim\nOf that, the load's own: {load:,.0f}\n")


if __name__ == "__main__":
    main()
