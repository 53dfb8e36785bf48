"""``sandpool install`` and ``sandpool uninstall`` on a real Kubernetes, as a person types them."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from sandpool.api.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, SANDBOX, SANDBOX_CLAIM
from sandpool.install import names
from sandpool.kube.errors import NotFound
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.installed_cluster import Cluster

pytestmark = pytest.mark.kubernetes


async def run(cluster: Cluster, command: str, *options: str) -> tuple[int, list[str]]:
    """The exit code, and what is said line by line."""
    program = [sys.executable, "-m", "sandpool.cli.main", command, "--kubeconfig", str(cluster.plane.kubeconfig)]
    done = await asyncio.to_thread(
        subprocess.run, [*program, *options], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


async def test_install_and_uninstall_are_idempotent(cluster: Cluster) -> None:
    client = cluster.client
    code, said = await run(cluster, "install", "--dry-run", "--router")
    assert (code, {line.rpartition(" created ")[2] for line in said}) == (0, {"(dry run)"})
    with pytest.raises(NotFound):
        await client.get(CUSTOM_RESOURCE_DEFINITION, SANDBOX.group_resource)

    code, said = await run(cluster, "install", "--router")
    assert code == 0
    assert said[-1].startswith("installed; to see it start: ")
    made = [line for line in said if line.endswith(" created")]
    code, said = await run(cluster, "install", "--router")
    assert (code, [line for line in said if line.endswith(" unchanged")]) == (
        0,
        [line.replace(" created", " unchanged") for line in made],
    )

    # It is in use, so it stays without --with-claims.
    claim = new(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "pool"}})
    await client.create(SANDBOX_CLAIM, claim, "default")
    code, said = await run(cluster, "uninstall")
    assert (code, said[0]) == (1, "Error: these claims would lose their sandboxes: default/mine")
    await client.get(SANDBOX_CLAIM, "mine", "default")
    code, said = await run(cluster, "uninstall", "--with-claims")
    assert (code, said[-1]) == (0, "uninstalled")
    with pytest.raises(NotFound):
        await client.get(CUSTOM_RESOURCE_DEFINITION, SANDBOX.group_resource)

    async def gone() -> bool:
        try:
            await client.get(NAMESPACE, names.NAMESPACE)
        except NotFound:
            return True
        return False

    await until(gone, within=120)
