"""``python -m benchmarks.startup``: how long ``sandpool`` takes to say something.

Each round runs every subject once, so a shared machine is as slow for all of them. Nothing has to run, and no root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Final

from benchmarks.run_overhead import Sample, sample, table

_SANDPOOL: Final = (sys.executable, "-m", "sandpool.cli.entry")
SUBJECTS: Final = {
    "`sandpool --help`": (*_SANDPOOL, "--help"),
    "`sandpool --version`": (*_SANDPOOL, "--version"),
    "`sandpool run --help`": (*_SANDPOOL, "run", "--help"),
    "`sandpool up --help`": (*_SANDPOOL, "up", "--help"),
    "`python3 -c pass`": (sys.executable, "-c", "pass"),
}
#: Of those that import next to nothing.
TARGETS: Final = {"`sandpool --help`": 150.0, "`sandpool --version`": 150.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    samples: dict[str, list[Sample]] = {subject: [] for subject in SUBJECTS}
    for _ in range(rounds):
        for subject, command in SUBJECTS.items():
            samples[subject].append(sample(command, dict(os.environ), output=subprocess.DEVNULL))
    print(f"{rounds} rounds, load average {os.getloadavg()[0]:.1f}\n\n{table(samples, TARGETS)}")


if __name__ == "__main__":
    main()
