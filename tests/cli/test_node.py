"""``sandpool node``: what it makes of its options, and how it complains."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from click.testing import CliRunner

from sandpool.cli.node import node
from sandpool.kube.connection import Connection
from sandpool.node.assembly import Settings

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "a", "user": {"token": "t"}}],
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    "current-context": "a",
}


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A command sets up the log of its process, which here is that of all tests."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(json.dumps(KUBECONFIG))
    return path


def understood(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Connection, Settings, bool]:
    """What the command would have run, had it run anything."""
    calls: list[tuple[Connection, Settings, bool]] = []

    def run(work: object) -> None:
        calls.append(work.args)  # type: ignore[attr-defined]

    monkeypatch.setattr("sandpool.cli.foreground.run", run)
    result = CliRunner().invoke(node, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return calls[0]


def test_what_it_is_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, kubeconfig: Path) -> None:
    connection, settings, keep = understood(monkeypatch, "--kubeconfig", str(kubeconfig))
    assert connection.server == "https://127.0.0.1:1"
    assert (settings.alone, settings.allow_host_paths, keep) == (False, False, False)
    assert settings.directory == Path("/var/lib/sandpool/node")


def test_options(monkeypatch: pytest.MonkeyPatch, kubeconfig: Path, tmp_path: Path) -> None:
    options = ["--name", "here", "--data-dir", str(tmp_path), "--max-pods", "7", "--pod-cidr", "10.9.0.0/16"]
    switches = ["--schedule", "--allow-host-path", "--keep"]
    _, settings, keep = understood(monkeypatch, "--kubeconfig", str(kubeconfig), *options, *switches)
    assert (settings.offer.name, settings.offer.pods) == ("here", 7)
    assert (settings.directory, settings.addresses) == (tmp_path, IPv4Network("10.9.0.0/16"))
    assert (settings.alone, settings.allow_host_paths, keep) == (True, True, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pod-cidr", "10.9.0.1/16"], "has host bits set"),
        (["--max-pods", "0"], "0 is not in the range"),
        (["--kubeconfig", "/none"], "/none"),
    ],
)
def test_complaints(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(node, arguments)
    assert result.exit_code != 0
    assert words in result.output
