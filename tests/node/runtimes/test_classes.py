"""Pods that ask for a runtime by the name of its class, on a real node: they get that one, or wait and know why."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import NAMESPACE, NODE, POD, RUNTIME_CLASS
from sandpool.api.resource import Object
from sandpool.kube.errors import NotFound
from sandpool.node.runtimes.gvisor import RUNSC_PATH
from sandpool.node.runtimes.handlers import UNSUPPORTED
from sandpool.node.runtimes.oci import RUNC_PATH
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import until
from tests.support.isolation import point_to_built
from tests.support.real_node import IMAGE, RealNode, real_node

pytestmark = pytest.mark.isolation

# A namespace of which the rig keeps its hands off, for what is there longer than the node.
LASTING = "lasting"
SERVER = {
    "name": "main", "image": IMAGE, "command": ["sh", "-c", "uname -r; cat /proc/1/comm; python3 -m http.server 8080"],
    "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1},
}  # fmt: skip


async def condition(node: RealNode, name: str, type: str, status: str, namespace: str = "default") -> Object:
    async def reached() -> Object | None:
        found = condition_of(await node.client.get(POD, name, namespace), type)
        return found if found is not None and found["status"] == status else None

    found = await until(reached)
    assert found is not None
    return found


async def test_pod_with_an_unavailable_runtime_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNSC_PATH, "/no/such/runsc")
    async with real_node(tmp_path) as node:
        names = {each["metadata"]["name"] for each in (await node.client.list(RUNTIME_CLASS))["items"]}
        assert names == {"bwrap", "crun", "gvisor", "runc", "runsc", *UNSUPPORTED}
        for handler, why in (("gvisor", "runsc is not installed"), ("kata", UNSUPPORTED["kata"])):
            name = await node.create("sleep", "1000", spec={"runtimeClassName": handler})
            told = await condition(node, name, "PodScheduled", "False")
            reason = f"runtime {handler} is not available on this node: {why}"
            assert (told["reason"], told["message"]) == ("Unschedulable", f"0/1 nodes are available: 1 {reason}.")
            assert (await node.get(name))["status"]["phase"] == "Pending"
        (machine,) = (await node.client.list(NODE))["items"]
        labels = machine["metadata"]["labels"]
        assert labels["runtime.sandpool.dev/bwrap"] == "true" and "runtime.sandpool.dev/gvisor" not in labels
        missing = condition_of(machine, "RuntimesUnavailable")
        assert missing is not None and "gvisor: runsc is not installed" in missing["message"]


@pytest.mark.parametrize(("name", "variable"), [("runsc", RUNSC_PATH), ("runc", RUNC_PATH)])
async def test_waiting_pod_runs_when_a_restarted_node_has_its_runtime(
    name: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_to_built(name, variable)
    if variable not in os.environ:
        pytest.skip(f"{name} is not there: build it with dev/{name}")
    with monkeypatch.context() as without:
        without.setenv(variable, f"/no/such/{name}")
        async with real_node(tmp_path) as node:
            await node.client.create(NAMESPACE, new(NAMESPACE, LASTING))
            spec = {"runtimeClassName": name, "containers": [SERVER], "terminationGracePeriodSeconds": 1}
            await node.client.create(POD, pod("one", spec=spec), LASTING)
            await condition(node, "one", "PodScheduled", "False", LASTING)
    async with real_node(tmp_path) as node:
        await condition(node, "one", "Ready", "True", LASTING)
        found = await node.client.get(POD, "one", LASTING)
        said = bytes(node.logs.written[found["metadata"]["uid"], "main"])
        kernel, first = said.decode().splitlines()[:2]
        assert (kernel == platform.release(), first) == (name == "runc", "sh")
        (machine,) = (await node.client.list(NODE))["items"]
        assert machine["metadata"]["labels"][f"runtime.sandpool.dev/{name}"] == "true"
        await node.client.delete(POD, "one", LASTING)

        async def is_gone() -> bool:
            try:
                await node.client.get(POD, "one", LASTING)
            except NotFound:
                return True
            return False

        await until(is_gone)
