"""``sandpool demo``: a warm pool and a burst of claims, from nothing to nothing in a few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import click
import uvloop

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import LAUNCH_TYPE, LAUNCH_WARM
from sandpool.bench.child_process import ComponentFailed
from sandpool.bench.figures import grid, percentile
from sandpool.bench.load import Load, Outcome
from sandpool.bench.sdk_process import MissingSdk, ScriptFailed
from sandpool.bench.server_process import ServerProcess
from sandpool.bench.subjects import client_of
from sandpool.cli.demo_sdk import SERIAL, Program, comparison
from sandpool.engine.clock import SystemClock

# For all sandboxes to end, in seconds.
_TIMEOUT: Final = 60.0
# Tries to talk to another sandbox, and shows the last line of the complaint.
_CALL: Final = (
    """sh -c "python3 -c 'import socket; socket.create_connection((\\"{address}\\", 8888), 5)' 2>&1 | tail -n 1" """
)
POOL: Final = 60
CLAIMS: Final = 50

_REAL: Final = "Sandboxes are real: isolated processes on this machine, each with a network of its own."
_SIMULATED: Final = "Sandboxes are simulated: nothing runs in them. As root, they are real."


@dataclass(frozen=True, slots=True)
class Step:
    """A line of explanation and the arguments of kubectl, in which {quickstart} is the path of the manifest. Of a long
    answer only the first ``lines`` are shown. ``refused`` is for what is expected to fail."""

    text: str
    arguments: str
    lines: int = 40
    refused: bool = False


def _until(path: str, count: int) -> str:
    return f"wait --timeout=60s --for=jsonpath={{{path}}}={count} swp/python"


BEFORE: Final = (
    Step(
        "An unmodified kubectl talks to it. A template, a warm pool and a claim, in one file:", "apply -f {quickstart}"
    ),
    Step("The claim is given a sandbox of the pool.", "wait --timeout=60s --for=condition=Ready sandboxclaim/my-claim"),
    Step("A pool can be scaled like a Deployment.", f"scale swp python --replicas={POOL}"),
    Step("It fills.", _until(".status.readyReplicas", POOL)),
    Step("What there is, with the columns the kinds define.", "get sandboxtemplates,sandboxwarmpools,sandboxclaims"),
)
AFTER: Final = (
    Step("Each of the claims has a sandbox of its own.", "get sandboxclaims", lines=6),
    Step("The pool is filled again.", _until(".status.readyReplicas", POOL)),
    Step(
        "A pool can follow its template step by step; here, three quarters of it are always ready.",
        "patch swp python --type=merge -p "
        """'{"spec":{"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"25%"}}}}'""",
    ),
    Step(
        "The template gets a new image.",
        "patch sandboxtemplate python --type=json -p "
        """'[{"op":"replace","path":"/spec/podTemplate/spec/containers/0/image","value":"sandpool.local/python:2"}]'""",
    ),
    Step("The members of the pool are replaced,", _until(".status.updatedReadyReplicas", POOL)),
    Step("the old ones go,", _until(".status.replicas", POOL)),
    Step("and claims that were served keep what they have.", "get sandboxwarmpools,sandboxclaims", lines=8),
    Step(
        "What does not fit the schema is refused, with the reason.",
        """patch swp python --type=merge -p '{"spec":{"replicas":-1}}'""",
        refused=True,
    ),
    Step("Deleting waits until it is done.", "delete -f {quickstart}"),
)


@click.command()
@click.option("--keep", is_flag=True, help="Leave everything running at the end, and say how to reach it.")
@click.option(
    "--simulated",
    is_flag=True,
    default=lambda: os.geteuid() != 0,
    show_default="unless root",
    help="Run nothing in the sandboxes.",
)
def demo(keep: bool, simulated: bool) -> None:
    """Start everything, claim sandboxes from a warm pool, show what happens, stop."""
    kubectl = _find_kubectl()
    nodes = ("--simulated-nodes", "1") if simulated else ()
    try:
        with ServerProcess("up", options=(*nodes, "--metrics-bind-address", "0")) as server:
            click.echo(f"Everything was ready {server.seconds:.2f} s after the start.")
            click.echo(f"{_SIMULATED if simulated else _REAL}\n")
            with as_file(files("sandpool.cli") / "manifests" / "quickstart.yaml") as quickstart:
                show = _Show(kubectl, server.kubeconfig, quickstart)
                show.steps(BEFORE)
                show.burst()
                if simulated:
                    _explain("As root, Python code would run in each of them now, through the published SDK.\n")
                else:
                    show.worlds()
                    show.python(server)
                show.steps(AFTER)
            if keep:
                click.echo(
                    f"Still running. In another terminal:\n\n  export KUBECONFIG={server.kubeconfig}\n\nCtrl-C ends it."
                )
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()
            server.process.stop(_TIMEOUT)
    except ComponentFailed as error:
        raise click.ClickException(str(error)) from None
    if show.failed:
        raise click.ClickException("these steps went wrong: " + " ".join(show.failed))
    click.echo("The server has stopped and its directory is gone.")


class _Show:
    """Does the steps and shows them; ``failed`` are the texts of those that went wrong."""

    def __init__(self, kubectl: str, kubeconfig: Path, quickstart: Path) -> None:
        self.kubectl = kubectl
        self.kubeconfig = kubeconfig
        self.quickstart = quickstart
        self.failed: list[str] = []

    def steps(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            _explain(step.text)
            click.secho(f"$ kubectl {_with(self.quickstart.name, step.arguments)}", bold=True)
            arguments = shlex.split(_with(str(self.quickstart), step.arguments))
            result = subprocess.run(
                [self.kubectl, "--kubeconfig", str(self.kubeconfig), *arguments],
                capture_output=True,
                text=True,
                check=False,
            )
            click.echo(_beginning((result.stdout + result.stderr).rstrip(), step.lines) + "\n")
            if (result.returncode != 0) is not step.refused:
                self.failed.append(step.text)

    def worlds(self) -> None:
        """Look around in two sandboxes that were claimed."""
        one, two = self._ask("get sandboxclaims -o jsonpath={.items[*].status.sandbox.name}").split()[:2]
        address = self._ask(f"get pod {one} -o jsonpath={{.status.podIP}}")
        self.steps(
            (
                Step(
                    "A sandbox has its own name, files and processes.",
                    f"exec {one} -- sh -c 'echo mine > /workspace/file; hostname; ls /workspace; ls -d /proc/[0-9]*'",
                ),
                Step("Another one sees nothing of them,", f"exec {two} -- sh -c 'hostname; ls /workspace'"),
                Step("and does not reach it.", f"exec {two} -- {_CALL.format(address=address)}"),
            )
        )

    def python(self, server: ServerProcess) -> None:
        """Run code in all sandboxes that were claimed, and time how long it takes to get as far with new ones."""
        try:
            program = Program(self.kubeconfig, server.directory, server.router)
        except MissingSdk as error:
            _explain(f"Python code in the sandboxes is left out: {error}\n")
            return
        try:
            self._code_in_each(program)
            self._first_results(program)
        except ScriptFailed as error:
            click.echo(f"{error}\n")
            self.failed.append("Python code through the SDK.")
        finally:
            program.stop()

    def _code_in_each(self, program: Program) -> None:
        text = "The SDK of agent-sandbox, unmodified, runs Python code in every sandbox that was claimed."
        _explain(text)
        claims = self._ask("get sandboxclaims -o jsonpath={.items[*].metadata.name}").split()
        lines = program.in_each(claims)
        click.echo("\n".join(lines[:3]))
        click.echo(f"... and {len(lines) - 3} more, from {len(set(lines))} different sandboxes\n")
        if len(set(lines)) < len(claims):
            self.failed.append(text)

    def _first_results(self, program: Program) -> None:
        self.steps((Step("The pool is being filled again.", _until(".status.readyReplicas", POOL)),))
        _explain("How long a program waits for the first result from a sandbox that it asks for now.")
        serial = program.first_results("python", SERIAL, at_once=False)
        self._ask(_until(".status.readyReplicas", POOL))
        at_once = program.first_results("python", CLAIMS, at_once=True)
        click.echo(comparison(serial, at_once) + "\n")

    def _ask(self, arguments: str) -> str:
        command = [self.kubectl, "--kubeconfig", str(self.kubeconfig), *shlex.split(arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def burst(self) -> None:
        text = f"{CLAIMS} claims at once, each timed from the call that creates it until a watch says that it is ready."
        _explain(text)
        outcome, warm = uvloop.run(_burst(self.kubeconfig))
        head = ["claims", "p50 ms", "p90 ms", "p99 ms", "max ms", "warm", "cold"]
        latencies = outcome.latencies
        if len(latencies) < CLAIMS:
            self.failed.append(text)
        times = (
            [f"{percentile(latencies, percent) * 1e3:.1f}" for percent in (50, 90, 99, 100)] if latencies else ["-"] * 4
        )
        click.echo(grid([head, [str(len(latencies)), *times, str(warm), str(CLAIMS - warm)]]) + "\n")


async def _burst(kubeconfig: Path) -> tuple[Outcome, int]:
    """The outcome of the claims, and the number of sandboxes that came from the pool."""
    async with client_of(kubeconfig) as client, Load(client, SystemClock(), "default", "python") as load:
        # Connections are opened before, as those of a program that has run for a while.
        await asyncio.gather(*(client.list(SANDBOX_CLAIM, "default", limit=1) for _ in range(CLAIMS)))
        outcome = await load.run([[0.0] * CLAIMS])
        names = {claim.sandbox for claim in outcome.claims}
        boxes = (await client.list(SANDBOX, "default"))["items"]
    return outcome, sum(
        box["metadata"]["name"] in names and box["metadata"]["labels"].get(LAUNCH_TYPE) == LAUNCH_WARM for box in boxes
    )


def _explain(text: str) -> None:
    click.secho(f"# {text}", dim=True)


def _with(quickstart: str, arguments: str) -> str:
    return arguments.replace("{quickstart}", quickstart)


def _beginning(text: str, lines: int) -> str:
    all_lines = text.splitlines()
    left_out = len(all_lines) - lines
    return "\n".join([*all_lines[:lines], f"... and {left_out} more lines"]) if left_out > 1 else text


def _find_kubectl() -> str:
    if found := shutil.which("kubectl"):
        return found
    raise click.ClickException("kubectl is not installed; as root run: apt-get install kubernetes-client")
