"""``make bench-data``: measures how fast sandboxes answer, through the SDK, through the router, and without either.

``sandpool up`` with real sandboxes runs in its own network namespace (as root). A plain client program that does the
same as the SDK shows what the SDK costs, and a direct connection to the sandbox shows what the router costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from benchmarks.data_client import Job
from benchmarks.data_exec import exec_path
from benchmarks.data_sdk import burst, commands, end, serial
from benchmarks.stored_figures import save
from sandpool.api.labels import SANDBOX_NAME_HASH, WARM_POOL
from sandpool.bench.figures import Figure, percentile, table
from sandpool.bench.sdk_process import SdkProcess, Speaker
from sandpool.bench.subjects import cpu_seconds, starved_seconds
from tests.support.private_network import PrivateHome
from tests.support.sdk_scripts import pool

BURST = 100
_SERIAL = 60
_POOL = "bench"
_FILE_MEGABYTES = 256
_TASKS = 1000


def say(text: str) -> None:
    sys.stderr.write(f"bench-data: {text}\n")
    sys.stderr.flush()


def router_and(pid: int) -> list[int]:
    """Return the PID of a ``sandpool up`` and that of its router process, if it has one."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    routers = [int(child) for child in children if b"sandpool.router" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return [pid, *routers]


@dataclass(slots=True)
class Use:
    """CPU time in seconds: used, and waited for while ready to run."""

    cpu: float = 0.0
    starved: float = 0.0

    def per(self, count: int) -> dict[str, str]:
        return {
            "CPU of the home": f"{self.cpu / count * 1e3:.0f} ms/claim",
            "home waited for a processor": f"{self.starved / count * 1e3:.0f} ms/claim",
        }


def _burst(who: str, times: Sequence[float], details: dict[str, str]) -> Figure:
    p50 = percentile(times, 50) * 1e3
    shown = {"p99": f"{percentile(times, 99) * 1e3:.0f} ms", **details}
    return Figure(f"burst of {BURST} to first result, {who}", p50, "ms", "p50 <= 150", p50 <= 150, shown)


class Bench:
    def __init__(self, home: PrivateHome, sdk: SdkProcess) -> None:
        self.home = home
        self.where = urlsplit(home.router)
        self.speak = Speaker(sdk, {"class": "SandboxDirectConnectionConfig", "api_url": home.router})

    def client(self, job: Job) -> Any:
        command = [*self.home.prefix, sys.executable, *job.arguments()]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)

    def through_router(self, kind: str, sandbox: str = "", **options: Any) -> Job:
        assert self.where.hostname is not None and self.where.port is not None
        headers = {"X-Sandbox-ID": sandbox} if sandbox else {}
        return Job(kind, self.where.hostname, self.where.port, headers=headers, **options)

    def filled(self) -> None:
        """Wait until all objects of earlier claims are deleted and the pool is full."""
        self._wait("pods", f"--selector={SANDBOX_NAME_HASH},!{WARM_POOL}", "--for=delete")
        self._wait(f"sandboxwarmpool/{_POOL}", f"--for=jsonpath={{.status.readyReplicas}}={BURST}")

    def _wait(self, *what: str) -> None:
        self.home.kubectl("wait", *what, "--timeout=300s", patience=310)

    def first_results(self) -> list[Figure]:
        figures = []
        for keep in (True, False):
            figures.append(self._serial(keep))
            self.filled()
        say(f"{BURST} at once, a plain client")
        found = self.client(self._claims())
        server = Use(found["used"], found["starved"])
        own_share = {"CPU of the client": f"{found['own'] / BURST * 1e3:.0f} ms/claim"}
        figures.append(_burst("plain client", found["latencies"], {**own_share, **server.per(BURST)}))
        self.filled()
        say(f"{BURST} at once, the SDK")
        with self._watched() as server:
            times, cpu = self.speak(burst, _POOL, BURST)
        self.speak(end)
        own_share = {"CPU of the SDK": f"{cpu / BURST * 1e3:.0f} ms/claim, {cpu:.1f} s on one core"}
        figures.append(_burst("SDK", times, {**own_share, **server.per(BURST)}))
        self.filled()
        return figures

    def _serial(self, keep: bool) -> Figure:
        how = "" if keep else ", the one before being taken down"
        say(f"warm claim to first result, one after the other{how}")
        with self._watched() as server:
            took = self.speak(serial, _POOL, _SERIAL, keep)
        self.speak(end)
        whole, claimed, own = ([each[column] * 1e3 for each in took] for column in range(3))
        p50, p99 = percentile(whole, 50), percentile(whole, 99)
        details = {
            "p99": f"{p99:.0f} ms",
            "claimed after": f"{percentile(claimed, 50):.0f} ms",
            "CPU of the SDK": f"{percentile(own, 50):.0f} ms/claim",
            **server.per(_SERIAL),
        }
        reached = p50 <= 25 and p99 <= 80
        return Figure(f"warm claim to first result, SDK{how}", p50, "ms", "p50 <= 25, p99 <= 80", reached, details)

    def _claims(self) -> Job:
        processes = router_and(self.home.server.process.pid)
        return self.through_router("claims", count=BURST, kubeconfig=self._kubeconfig, pool=_POOL, processes=processes)

    @contextmanager
    def _watched(self) -> Iterator[Use]:
        """Measure what the ``sandpool up`` process and its router use during the block; available after it."""
        processes, use = router_and(self.home.server.process.pid), Use()
        cpu, starved = sum(map(cpu_seconds, processes)), sum(map(starved_seconds, processes))
        yield use
        use.cpu, use.starved = sum(map(cpu_seconds, processes)) - cpu, sum(map(starved_seconds, processes)) - starved

    def round_trips(self) -> list[Figure]:
        say("commands through the SDK")
        took = self.speak(commands, _POOL, 200)
        p50 = percentile(took, 50) * 1e3
        details = {"p99": f"{percentile(took, 99) * 1e3:.1f} ms"}
        return [Figure("a command and back, SDK", p50, "ms", "p50 <= 5", p50 <= 5, details)]

    def python_client(self) -> list[Figure]:
        """The Python client of this package, over the API server: no router, no SDK."""
        figures = []
        for job, what, target in (
            ("serial", "warm claim to first result, Client", 12.0),
            ("fresh", "the same, a new Client for each", None),
        ):
            say(what)
            took, details = self._python(job, _SERIAL)
            p50 = percentile(took, 50) * 1e3
            details = {"p99": f"{percentile(took, 99) * 1e3:.0f} ms", **details}
            aim, reached = ("", None) if target is None else (f"p50 <= {target:g}", p50 <= target)
            figures.append(Figure(what, p50, "ms", aim, reached, details))
            self.filled()
        say(f"{BURST} at once, Client")
        took, details = self._python("burst", BURST)
        figures.append(_burst("Client", took, details))
        self.filled()
        for job, how, rate in (("tasks", "processes", 60.0), ("sessions", "code sessions", 300.0)):
            what = f"map of {_TASKS:,} tasks over {BURST} sandboxes, {how}"
            say(what)
            seconds, details = self._python(job, _TASKS)
            reached = _TASKS / seconds >= rate
            figures.append(Figure(what, _TASKS / seconds, "tasks/s", f">= {rate:g}", reached, details))
            self.filled()
        return figures

    def late_binding_and_sleep(self) -> list[Figure]:
        """What variables add to a warm claim, and how long a sandbox that sleeps needs to its answer."""
        say("warm claims with and without variables")
        took, load = self._asleep("bound", _SERIAL)
        plain, bound = (percentile(took[f"{how} variables"], 50) * 1e3 for how in ("without", "with"))
        details = {"without": f"{plain:.1f} ms", "with": f"{bound:.1f} ms", "load": load}
        more = bound - plain
        figures = [Figure("variables for a warm claim, more time", more, "ms", "p50 <= 5", more <= 5, details)]
        for job, verb, count, target in (("resumed", "resume", 20, 400.0), ("thawed", "thaw", 40, 5.0)):
            say(f"sandboxes that sleep: {verb}")
            took, load = self._asleep(job, count)
            for way in ("command", "request"):
                p50 = percentile(took[way], 50) * 1e3
                details = {"p99": f"{percentile(took[way], 99) * 1e3:.1f} ms", "load": load}
                if awake := took.get(f"{way}, awake"):
                    details["awake"] = f"{percentile(awake, 50) * 1e3:.1f} ms"
                what = f"{verb} to the answer, {way}{' through the router' if way == 'request' else ''}"
                figures.append(Figure(what, p50, "ms", f"p50 <= {target:g}", p50 <= target, details))
        return figures

    def _asleep(self, job: str, count: int) -> tuple[dict[str, list[float]], str]:
        arguments = ("-m", "benchmarks.data_sleep", job, "--kubeconfig", self._kubeconfig, "--router", self.home.router)
        command = [*self.home.prefix, sys.executable, *arguments, "--count", str(count)]
        answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
        return answer["found"], f"{answer['load']:.0f}"

    def _python(self, job: str, count: int) -> tuple[Any, dict[str, str]]:
        arguments = ("-m", "benchmarks.data_python", job, "--kubeconfig", self._kubeconfig, "--pool", _POOL)
        command = [*self.home.prefix, sys.executable, *arguments, "--count", str(count)]
        with self._watched() as home:
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        answer = json.loads(done.stdout)
        details = {
            "CPU of the program": f"{answer['cpu'] / count * 1e3:.1f} ms each",
            "CPU of the home": f"{home.cpu / count * 1e3:.1f} ms each",
            "home waited for a processor": f"{home.starved / count * 1e3:.1f} ms each",
            "load": f"{os.getloadavg()[0]:.0f}",
        }
        return answer["found"], details

    def routing(self) -> list[Figure]:
        with self._sandbox() as (sandbox, address):
            past = Job("requests", address, 8888, count=2000)
            through = self.through_router("requests", sandbox, count=2000)
            say("requests one at a time, past the router and through it")
            both = [percentile(self.client(job)["latencies"], 50) * 1e3 for job in (past, through)]
            overhead = both[1] - both[0]
            details = {"past it": f"{both[0]:.2f} ms", "through it": f"{both[1]:.2f} ms"}
            figures = [Figure("router, added to a request", overhead, "ms", "p50 <= 1", overhead <= 1, details)]
            figures.append(self._throughput(sandbox))
            figures.append(self._executions(sandbox))
            figures += self._downloads(sandbox, address)
        return figures

    def _throughput(self, sandbox: str) -> Figure:
        """Measure requests per second. The health endpoint is answered by the router itself, so it shows the limit of
        the router without a sandbox."""
        say("requests at once")
        rates, costs = [], []
        for path in ("/", "/healthz"):
            with self._watched() as home:
                found = self.client(self.through_router("requests", sandbox, path=path, count=20_000, at_once=64))
            rates.append(len(found["latencies"]) / found["seconds"])
            costs.append((home.cpu * 1e6 / 20_000, home.starved / found["seconds"]))
        rate, (cpu, starved) = rates[0], costs[0]
        details = {
            "CPU of the home": f"{cpu:.0f} µs/request",
            "home waited for a processor": f"{starved:.0%} of the time",
            "answers of its own": f"{rates[1]:,.0f}/s at {costs[1][0]:.0f} µs",
        }
        return Figure("router, requests of 64 connections", rate, "/s", ">= 3,000", rate >= 3000, details)

    def _executions(self, sandbox: str) -> Figure:
        """Measure exec calls. The protocol requires a connection for each, whose time is reported separately."""
        say("commands as kubectl runs them")
        job = self.through_router("executions", count=100, path=exec_path(sandbox, "true"), kubeconfig=self._kubeconfig)
        with self._watched() as home:
            took = self.client(job)["latencies"]
        connecting, running = ([each[column] * 1e3 for each in took] for column in range(2))
        p50 = percentile(running, 50)
        details = {
            "p99": f"{percentile(running, 99):.1f} ms",
            "connecting before that": f"{percentile(connecting, 50):.1f} ms",
            "CPU of the home": f"{home.cpu / len(took) * 1e3:.1f} ms/command",
        }
        return Figure("exec over a WebSocket and back", p50, "ms", "p50 <= 5", p50 <= 5, details)

    @property
    def _kubeconfig(self) -> str:
        return str(self.home.server.kubeconfig)

    def _downloads(self, sandbox: str, address: str) -> list[Figure]:
        say("downloads")
        found = {}
        for who, job in (
            ("through the router", self.through_router("download", sandbox, path="/download/large")),
            ("from the sandbox itself", Job("download", address, 8888, path="/download/large")),
        ):
            runs = [self.client(job) for _ in range(3)]
            found[who] = max(run["bytes"] / run["seconds"] for run in runs) / 1e6
        best = found.pop("through the router")
        details = {who: f"{rate:,.0f} MB/s" for who, rate in found.items()}
        return [Figure("download through the router", best, "MB/s", ">= 300", best >= 300, details)]

    @contextmanager
    def _sandbox(self) -> Iterator[tuple[str, str]]:
        """Create a sandbox with a large file in it. Returns its name and address."""

        def make(sdk: Any, pool: str, megabytes: int) -> Any:
            box = sdk.client.create_sandbox(pool)
            sdk.kept = [box]
            box.commands.run(f"head -c {megabytes}M /dev/zero > large")
            return [box.sandbox_id, box.get_pod_ip()]

        sandbox, address = self.speak(make, _POOL, _FILE_MEGABYTES)
        try:
            yield sandbox, address
        finally:
            self.speak(end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=Path("build/bench-data.json"), help="write the figures to this file"
    )
    parser.add_argument("--only", choices=("python",), help="measure the Python client of this package only")
    options = parser.parse_args()
    home = PrivateHome().start()
    try:
        home.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(pool(_POOL, BURST, {})))
        sdk = home.sdk()
        bench = Bench(home, sdk)
        say(f"filling a pool of {BURST}")
        bench.filled()
        figures = [*bench.python_client(), *bench.late_binding_and_sleep()]
        if options.only is None:
            figures += [*bench.first_results(), *bench.round_trips(), *bench.routing()]
        sdk.stop()
    finally:
        home.stop()
    sys.stdout.write(table(figures) + "\n")
    save(figures, options.json)


if __name__ == "__main__":
    main()
