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
from sandpool.node.assembly import NodeOptions
from sandpool.node.kubelet import kubelet
from sandpool.server.serving.pki import Identity

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


def understood(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Connection, NodeOptions, bool]:
    """Record the options with which the command would have run."""
    calls: list[tuple[Connection, NodeOptions, bool]] = []

    def run(work: object) -> None:
        calls.append(work.args)  # type: ignore[attr-defined]

    monkeypatch.setattr("sandpool.cli.foreground.run", run)
    result = CliRunner().invoke(node, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return calls[0]


def test_options_have_their_defaults(monkeypatch: pytest.MonkeyPatch, kubeconfig: Path) -> None:
    connection, settings, keep = understood(monkeypatch, "--kubeconfig", str(kubeconfig))
    assert connection.server == "https://127.0.0.1:1"
    assert (settings.alone, settings.allow_host_paths, keep) == (False, False, False)
    assert settings.directory == Path("/var/lib/sandpool/node")
    assert settings.kubelet == kubelet.KubeletOptions("", 10250, "127.0.0.1", None, None), "as a kubelet is"


def test_options_are_passed_to_the_node(monkeypatch: pytest.MonkeyPatch, kubeconfig: Path, tmp_path: Path) -> None:
    options = ["--name", "here", "--data-dir", str(tmp_path), "--max-pods", "7", "--pod-cidr", "10.9.0.0/16"]
    switches = ["--schedule", "--allow-host-path", "--keep"]
    _, settings, keep = understood(monkeypatch, "--kubeconfig", str(kubeconfig), *options, *switches)
    assert (settings.registration.name, settings.registration.pods) == ("here", 7)
    assert (settings.directory, settings.addresses) == (tmp_path, IPv4Network("10.9.0.0/16"))
    assert (settings.alone, settings.allow_host_paths, keep) == (True, True, True)


def test_kubelet_options_are_passed_to_the_node(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: Path, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("client-ca-file", "tls-cert-file", "tls-private-key-file")}
    for file in files.values():
        file.touch()
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    listening = ["--kubelet-address", "::1", "--kubelet-port", "0"]
    _, settings, _ = understood(monkeypatch, "--kubeconfig", str(kubeconfig), *options, *listening)
    authority, *identity = files.values()
    assert settings.kubelet == kubelet.KubeletOptions("::1", 0, "::1", authority, Identity(*identity))


@pytest.mark.parametrize(
    ("arguments", "address", "found_at"),
    [
        (("--kubelet-address", "0.0.0.0"), "0.0.0.0", "127.0.0.1"),
        (("--kubelet-address", "192.0.2.1"), "192.0.2.1", "192.0.2.1"),
        (("--node-ip", "192.0.2.1"), "", "192.0.2.1"),
        (("--node-ip", "192.0.2.1", "--kubelet-address", "::"), "::", "192.0.2.1"),
    ],
)
def test_listen_address_and_advertised_address_are_derived(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: Path, arguments: tuple[str, ...], address: str, found_at: str
) -> None:
    _, settings, _ = understood(monkeypatch, "--kubeconfig", str(kubeconfig), *arguments)
    assert settings.kubelet == kubelet.KubeletOptions(address, 10250, found_at)


def test_undeterminable_address_is_reported(kubeconfig: Path) -> None:
    """The API has an address of the other sort than those on which it is to listen."""
    result = CliRunner().invoke(node, ["--kubeconfig", str(kubeconfig), "--kubelet-address", "::"])
    assert result.exit_code != 0
    assert "cannot determine the local address of the route to 127.0.0.1" in result.output
    assert "set --node-ip" in result.output


def test_nodes_of_different_directories_have_different_names(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: Path, tmp_path: Path
) -> None:
    found = {
        (settings.instance, settings.first_host_user)
        for name in ("one", "another", "one")
        for _, settings, _ in [
            understood(monkeypatch, "--kubeconfig", str(kubeconfig), "--data-dir", str(tmp_path / name))
        ]
    }
    assert len(found) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pod-cidr", "10.9.0.1/16"], "has host bits set"),
        (["--max-pods", "0"], "0 is not in the range"),
        (["--kubeconfig", "/none"], "/none"),
        (["--kubelet-port", "65536"], "65536 is not in the range"),
        (["--client-ca-file", "/none"], "'/none' does not exist"),
    ],
)
def test_invalid_options_are_rejected(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(node, arguments)
    assert result.exit_code != 0
    assert words in result.output


def test_certificate_without_its_key_is_rejected(kubeconfig: Path, tmp_path: Path) -> None:
    (tmp_path / "tls.crt").touch()
    result = CliRunner().invoke(node, ["--kubeconfig", str(kubeconfig), "--tls-cert-file", str(tmp_path / "tls.crt")])
    assert result.exit_code != 0
    assert "--tls-cert-file and --tls-private-key-file must be given together" in result.output
