"""``sandpool why`` as a person uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.bench.server_process import ServerProcess
from sandpool.cli.main import main
from sandpool.cli.why import lines
from sandpool.explain.claim import Explanation, Link
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.testing.objects import new

MOMENT = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("server", users={"alice": ()}) as server:
        asyncio.run(_claim_something(server))
        yield server


async def _claim_something(server: ServerProcess) -> None:
    client = Client(HttpTransport(kubeconfigs.load(server.kubeconfig)))
    try:
        await client.create(SANDBOX_CLAIM, new(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "no"}}), "default")
    finally:
        await client.close()


@pytest.fixture
def of_alice(server: ServerProcess, tmp_path: Path) -> Path:
    """The kubeconfig of a user without permissions."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": server.tokens["alice"]}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ("why", "claim", *arguments))


def test_blocked_claim_is_explained(server: ServerProcess) -> None:
    told = run("mine", "--kubeconfig", str(server.kubeconfig))
    assert told.exit_code == 0, told.output
    said = told.output.splitlines()
    assert said[0] == 'Claim "mine" is not ready: pool "no" does not exist.'
    assert said[2].endswith('Z         created, requesting a sandbox of pool "no"')
    assert said[-1] == "To do: create the pool, or create a claim that names another pool."


def test_missing_claim_is_reported(server: ServerProcess) -> None:
    told = run("other", "-n", "some", "--kubeconfig", str(server.kubeconfig))
    assert told.exit_code == 1
    assert (
        'there is no claim "other" in namespace "some"; with an audit log, `sandpool trace claim other` shows'
        in told.output
    )


def test_namespace_of_the_context_is_the_default(server: ServerProcess, tmp_path: Path) -> None:
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "some"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    assert 'there is no claim "mine" in namespace "some"' in run("mine", "--kubeconfig", str(path)).output


def test_missing_permission_is_reported(of_alice: Path) -> None:
    told = run("mine", "--kubeconfig", str(of_alice))
    assert told.exit_code == 1
    assert "This needs permission to get sandboxclaims" in told.output


def test_unreadable_kubeconfig_is_reported() -> None:
    told = run("mine", "--kubeconfig", "/nowhere/config")
    assert told.exit_code == 1
    assert "cannot read the kubeconfig /nowhere/config" in told.output


def test_explanation_is_laid_out_in_lines() -> None:
    chain = (Link(MOMENT, "whole"), Link(MOMENT.replace(microsecond=5), "precise"), Link(None, "unknown"))
    assert list(lines(Explanation("It is so.", chain, "wait", ("pods: what they say",)))) == [
        "It is so.",
        "",
        "  2026-11-01T12:00:00Z         whole",
        "  2026-11-01T12:00:00.000005Z  precise",
        "                               unknown",
        "",
        "To do: wait.",
        "",
        "Unknown, because reading it is forbidden:",
        "  pods: what they say",
    ]
    assert list(lines(Explanation("It is so.", ()))) == ["It is so.", ""]


def test_a_name_is_enough_and_a_kind_may_be_named(server: ServerProcess) -> None:
    def ask(*arguments: str) -> Result:
        return CliRunner().invoke(main, ("why", *arguments, "--kubeconfig", str(server.kubeconfig)))

    expected = 'Claim "mine" is not ready: pool "no" does not exist.'
    assert [ask(*words).output.splitlines()[0] for words in (["mine"], ["claim/mine"], ["claim", "mine"])] == [
        expected
    ] * 3
    assert "Did you mean mine?" in ask("mime").output
    for kind in ("sandbox", "pool", "template", "pod"):
        assert f'there is no {kind} "nope" in namespace "default"' in ask(kind, "nope").output
