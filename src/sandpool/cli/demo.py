"""``sandpool demo``: the embedded API, used by a real kubectl, from nothing to nothing in a few seconds."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path

import click

from sandpool.testing.assets import MissingAssets, find_assets

# What is shown: a line of explanation and the arguments of kubectl. {quickstart} is the manifest's path.
STEPS: tuple[tuple[str, str], ...] = (
    ("An unmodified kubectl talks to it.", "version"),
    ("These are the kinds of the agent-sandbox API.", "api-resources --api-group=extensions.agents.x-k8s.io"),
    ("A template, a warm pool and a claim, in one file.", "apply -f {quickstart}"),
    (
        "Applying again changes nothing; this time the server keeps track of who owns which field.",
        "apply --server-side --force-conflicts -f {quickstart}",
    ),
    ("What is stored, with the columns the kinds define.", "get sandboxtemplates,sandboxwarmpools,sandboxclaims"),
    ("Defaults are filled in.", "get swp python -o jsonpath={{.spec}}"),
    ("A pool can be scaled like a Deployment.", "scale swp python --replicas=5"),
    ("Schemas document themselves.", "explain sandboxclaim.spec.lifecycle"),
    (
        "What does not fit the schema is refused, with the reason.",
        'patch swp python --type=merge -p \'{{"spec":{{"replicas":-1}}}}\'',
    ),
    ("Deleting waits until it is done.", "delete -f {quickstart}"),
)


@click.command()
@click.option("--keep", is_flag=True, help="Leave the server running at the end, and say how to reach it.")
def demo(keep: bool) -> None:
    """Start the embedded API, apply a template, a pool and a claim with kubectl, show what happens, stop."""
    kubectl = _find_kubectl()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sandpool-demo-") as directory, _server(Path(directory)) as kubeconfig:
        click.echo(f"The embedded API was ready {time.monotonic() - started:.2f} s after the start.\n")
        with as_file(files("sandpool.cli") / "manifests" / "quickstart.yaml") as quickstart:
            failed = [text for text, arguments in STEPS if not _step(kubectl, kubeconfig, text, arguments, quickstart)]
        if keep:
            click.echo(f"Still running. In another terminal:\n\n  export KUBECONFIG={kubeconfig}\n\nCtrl-C stops it.")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    if failed:
        raise click.ClickException("these steps went wrong: " + " ".join(failed))
    click.echo("The server has stopped and its directory is gone.")


def _find_kubectl() -> str:
    if found := shutil.which("kubectl"):
        return found
    with contextlib.suppress(MissingAssets):
        return str(find_assets().binary("kubectl"))
    raise click.ClickException("kubectl is not installed; as root run: apt-get install kubernetes-client")


@contextlib.contextmanager
def _server(directory: Path) -> Iterator[Path]:
    """A server of our own on a port the system chooses; yields the kubeconfig it wrote."""
    kubeconfig = directory / "kubeconfig"
    command = [sys.executable, "-m", "sandpool.cli.main", "server", "--data-dir", str(directory / "data")]
    command += ["--port", "0", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            # The server says one line once it serves, or its complaint goes to standard error and it ends.
            if not process.stdout.readline():
                raise click.ClickException("the server did not start")
            yield kubeconfig
        finally:
            process.terminate()
            process.wait()


def _step(kubectl: str, kubeconfig: Path, text: str, arguments: str, quickstart: Path) -> bool:
    shown = arguments.format(quickstart=quickstart.name)
    click.secho(f"# {text}", dim=True)
    click.secho(f"$ kubectl {shown}", bold=True)
    command = [kubectl, "--kubeconfig", str(kubeconfig), *shlex.split(arguments.format(quickstart=quickstart))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    click.echo((result.stdout + result.stderr).rstrip() + "\n")
    # The one step that shows a refusal is expected to fail.
    return (result.returncode == 0) != ("refused" in text)
