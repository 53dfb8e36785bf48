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
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...], said: str) -> None:
    result = run("serve", *arguments)
    assert result.exit_code != 0
    assert said in result.stderr
