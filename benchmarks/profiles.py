"""``make bench-profiles``: measures writes to a Sandbox on a real kube-apiserver with each profile of the CRD.

For each profile in turn, several writers patch one sandbox each, concurrently and repeatedly. The patches are merge
patches of one annotation: the cheapest write, and similar to a binding. The figures are patches per second and CPU time
of the API server per patch; the latter hardly depends on other load of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import orjson
import uvloop

from benchmarks.stored_figures import save
from sandpool.api.kinds import NAMESPACE, SANDBOX
from sandpool.api.sandbox_spec import Profile
from sandpool.bench.figures import Figure, percentile, table
from sandpool.bench.subjects import client_of, cpu_seconds, sandbox, starved_seconds
from sandpool.engine.clock import SystemClock
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions, definitions
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists
from sandpool.testing.waiting import until
from tests.support.control_plane import ControlPlane

WRITERS: Final = 50
PATCHES: Final = 1000
ROUNDS: Final = 2
_SPACE: Final = "bench"


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one round of patches. ``cpu`` and ``starved`` are seconds of the API server."""

    profile: Profile
    seconds: float
    latencies: list[float]
    cpu: float
    starved: float
    size: int  # bytes of one object as JSON


async def measure(client: Client, pid: int, profile: Profile, *, writers: int, patches: int) -> Round:
    """Install a profile and measure patches."""
    await Installer(client, SystemClock(), lambda line: None).install(definitions(InstallOptions(profile=profile)))
    await until(lambda: _works_by(client, profile), within=60)
    # New objects per profile: fields without a schema take less space, also in managedFields.
    names = [f"{profile}-{number}" for number in range(writers)]
    for name in names:
        with suppress(AlreadyExists):
            await client.create(SANDBOX, sandbox(name), _SPACE)
    await _patch(client, names, 2, [])  # connections are open and caches warm
    latencies: list[float] = []
    cpu, starved, begun = cpu_seconds(pid), starved_seconds(pid), time.perf_counter()
    await _patch(client, names, patches // writers, latencies)
    seconds = time.perf_counter() - begun
    stored = await client.get(SANDBOX, names[0], _SPACE)
    return Round(
        profile,
        seconds,
        latencies,
        cpu_seconds(pid) - cpu,
        starved_seconds(pid) - starved,
        len(orjson.dumps(stored)),
    )


async def _patch(client: Client, names: Sequence[str], times: int, latencies: list[float]) -> None:
    async def writer(name: str) -> None:
        for number in range(times):
            begun = time.perf_counter()
            patch: Any = {"metadata": {"annotations": {"bench": str(number)}}}
            await client.patch(SANDBOX, name, MergePatch(patch), _SPACE)
            latencies.append(time.perf_counter() - begun)

    await asyncio.gather(*map(writer, names))


async def _works_by(client: Client, profile: Profile) -> bool:
    """Whether the API server serves the profile yet."""
    box = sandbox("probe")
    box["spec"]["podTemplate"]["spec"]["fieldOfTomorrow"] = 1
    made = await client.create(SANDBOX, box, _SPACE, dry_run=True)
    return ("fieldOfTomorrow" in made["spec"]["podTemplate"]["spec"]) is (profile == "lean")


def figures(rounds: Sequence[Round]) -> list[Figure]:
    found = []
    for profile in get_args(Profile):
        own = [each for each in rounds if each.profile == profile]
        count = sum(len(each.latencies) for each in own)
        latencies = [each for one in own for each in one.latencies]
        found.append(
            Figure(
                f"{profile}: processor time of kube-apiserver per patch",
                sum(each.cpu for each in own) / count * 1e3,
                "ms",
                details={
                    "patches/s": f"{count / sum(each.seconds for each in own):.0f}",
                    "p50 ms": f"{percentile(latencies, 50) * 1e3:.0f}",
                    "p99 ms": f"{percentile(latencies, 99) * 1e3:.0f}",
                    "bytes": own[0].size,
                    "starved s": f"{sum(each.starved for each in own):.1f}",
                },
            )
        )
    return found


async def _run(writers: int, patches: int) -> list[Round]:
    async with ControlPlane(controller_manager=False) as plane, client_of(plane.kubeconfig) as client:
        await client.create(NAMESPACE, {"metadata": {"name": _SPACE}})
        pid = plane.apiserver.pid
        return [
            await measure(client, pid, profile, writers=writers, patches=patches)
            for _ in range(ROUNDS)
            for profile in get_args(Profile)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--writers", type=int, default=WRITERS, help="number of concurrent writers, each with its own sandbox"
    )
    parser.add_argument("--patches", type=int, default=PATCHES, help="patches per round; each profile has two rounds")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    found = figures(uvloop.run(_run(arguments.writers, arguments.patches)))
    sys.stdout.write(table(found) + "\n")
    if arguments.json:
        save(found, arguments.json, writers=arguments.writers, patches=arguments.patches)


if __name__ == "__main__":
    main()
