"""``sandpool claim``, ``release`` and ``ls`` as a user does it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess

import pytest
import yaml

from sandpool.api.kinds import EVENT
from sandpool.kube import kubeconfig
from sandpool.service.service import Service
from tests.support.playground import WITHIN, Playground

pytestmark = pytest.mark.isolation


def test_claim_ls_and_release(home: Playground) -> None:
    assert home.works("claim", "one") == "one\n"
    two = home.works("claim", "--pool", "python", "--ttl", "1h").strip()
    try:
        lines = [line.split() for line in home.works("ls").splitlines()]
        assert lines[0] == ["NAME", "STATE", "POOL", "AGE"]
        assert [line[:3] for line in lines[1:]] == [["one", "Ready", "python"], [two, "Ready", "python"]]
        assert home.works("ps", "-o", "name").split() == ["claim/one", f"claim/{two}"]
        assert "warm" in home.works("ls", "-o", "wide")
        assert "python (idle)" in home.works("ls", "-a")
        items = json.loads(home.works("ls", "-o", "json"))["items"]
        assert yaml.safe_load(home.works("ls", "-o", "yaml"))["items"] == items
        assert "managedFields" not in items[0]["metadata"]
        assert items[1]["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
        assert "NAMESPACE" in home.works("ls", "-A")
        assert 'claim "one" already exists' in home.fails("claim", "one")
    finally:
        assert sorted(home.works("release", "--all").splitlines()) == sorted(["released one", f"released {two}"])
    result = home.run("ls")
    assert (result.returncode, result.stdout) == (0, b"")
    assert b"make one with: sandpool claim" in result.stderr


async def test_events_of_a_healthy_warm_start_contain_no_warning(home: Playground) -> None:
    def healthy() -> str:
        home.works("pool", "create", "healthy", "--template", "python", "--size", "1", "--wait", "60s")
        name = home.works("claim", "--pool", "healthy").strip()
        home.works("exec", name, "--", "true")
        return name

    name = await asyncio.to_thread(healthy)
    async with Service.connect(kubeconfig.load(home.kubeconfig)) as service:
        sandbox = (await service.sandboxes.find(name)).name
        events = (await service.client.list(EVENT, service.namespace))["items"]
    await asyncio.to_thread(home.works, "release", name)
    await asyncio.to_thread(home.works, "pool", "rm", "healthy")
    about = [each for each in events if each["regarding"]["name"] in (name, sandbox, "healthy")]
    assert about, "there are events"
    assert [(each["reason"], each["note"]) for each in about if each["type"] != "Normal"] == []


def test_missing_runtimes_are_told_by_doctor_alone(home: Playground) -> None:
    said, found, _ = home.log().partition(" is running, pid ")
    assert found
    assert not {"runc", "runsc", "gvisor", "gVisor"} & set(re.findall(r"\w+", said))
    checks = {each["name"] for each in json.loads(home.run("doctor", "-o", "json").stdout)["findings"]}
    assert {"runc", "gvisor"} <= checks


def test_a_list_piped_into_head_ends_without_an_error(home: Playground) -> None:
    line = f"{' '.join(home.command('ls', '-a', '-o', 'yaml'))} | head -n 1"
    shell = ["bash", "-o", "pipefail", "-c", line]
    result = subprocess.run(shell, env=home.environ, capture_output=True, timeout=WITHIN, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"apiVersion: v1\n", b"")


def test_mistakes_are_one_line_with_advice(home: Playground) -> None:
    assert "name the claims to release, or use --all" in home.fails("release", code=2)
    assert 'there is no claim "nope"' in home.fails("release", "nope")
    assert "Invalid value for '--output'" in home.fails("ls", "-o", "xml", code=2)
    assert "no answer from" in home.fails("ls", env={**home.environ, "KUBECONFIG": _dead_end(home)})


def _dead_end(home: Playground) -> str:
    """A kubeconfig of a server that is gone."""
    path = home.directory / "dead-end"
    config = yaml.safe_load(home.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path.write_text(json.dumps(config))
    return str(path)
