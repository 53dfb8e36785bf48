from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sandpool.bench.server_process import ServerProcess
from sandpool.cli.main import main


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["e2b", *map(str, arguments)])


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


def test_keys_are_listed_and_revoked(server: ServerProcess) -> None:
    def key(*arguments: str) -> Result:
        return run("key", *arguments, "--kubeconfig", server.kubeconfig)

    assert "no API keys" in key("list").stderr
    # A template and a pool, because the command would wait for a sandbox of its own pool.
    made = CliRunner().invoke(
        main, ["template", "create", "small", "--image", "x", "--kubeconfig", str(server.kubeconfig)]
    )
    assert made.exit_code == 0, made.output
    made = CliRunner().invoke(main, ["pool", "create", "small", "--kubeconfig", str(server.kubeconfig)])
    assert made.exit_code == 0, made.output
    created = key("create", "ci", "--max-sandboxes", "7")
    assert created.exit_code == 0, created.output
    assert created.stdout.startswith("e2b_") and len(created.stdout.strip()) == 44
    heading, row = key("list").stdout.splitlines()
    assert heading.split() == ["ID", "NAME", "NAMESPACE", "MAX-SANDBOXES", "AGE"]
    key_id, name, namespace, most, _ = row.split()
    assert (name, namespace, most) == ("ci", "default", "7")
    assert key("revoke", key_id).stdout == f"revoked {key_id}\n"
    again = key("revoke", key_id)
    assert again.exit_code == 1 and f"there is no API key {key_id}" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--template", "base"), "is not TEMPLATE=POOL"),
        (("--bind-address", "0"), "an address is needed"),
        (("--bind-address", "nowhere"), "--bind-address"),
        (("--tls-cert-file", __file__), "belong together"),
        (("--bind-address", "0.0.0.0:0"), "--bind-address 0.0.0.0:0 is reachable from other machines"),
        (("--bind-address", ":0"), "or --behind-tls-proxy if a proxy in front has TLS"),
        (("--bind-address", "[::]:0"), "is reachable from other machines"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...], said: str) -> None:
    result = run("serve", *arguments)
    assert result.exit_code != 0
    assert said in result.stderr


def test_other_addresses_are_served_behind_a_proxy_with_tls(tmp_path: Path) -> None:
    missing = tmp_path / "kubeconfig"
    result = run("serve", "--bind-address", "0.0.0.0:0", "--behind-tls-proxy", "--kubeconfig", missing)
    assert result.exit_code == 1
    assert str(missing) in result.stderr, "the address is fine, and the next thing is the kubeconfig"
