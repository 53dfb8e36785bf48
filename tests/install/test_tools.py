"""Helm and kustomize themselves, on a real Kubernetes: what they install works, changes and goes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    CLUSTER_ROLE,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    SANDBOX,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
)
from sandpool.api.resource import SharedObject
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.definitions import served
from sandpool.install.manifests import InstallOptions, controller, definitions, namespace
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from tests.dev.deploy.test_chart import without_empties
from tests.support.assets import Assets
from tests.support.installed_cluster import Cluster

pytestmark = pytest.mark.kubernetes

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "sandpool"


def _run(*command: str | Path, home: Path) -> str:
    done = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def helm() -> Path:
    """The one on the PATH, or that of dev/helm-assets."""
    if found := shutil.which("helm"):
        return Path(found)
    built = subprocess.run([ROOT / "dev" / "helm-assets", "--check"], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip("there is no Helm: dev/helm-assets builds one")
    return Path(built.stdout.strip())


async def fill_a_pool(cluster: Cluster, space: str) -> None:
    """Fill a pool with the installed permissions and definitions."""
    client = cluster.client
    await served(client, SystemClock(), definitions(InstallOptions()))
    await client.create(NAMESPACE, new(NAMESPACE, space))
    template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
    await client.create(SANDBOX_TEMPLATE, template, space)
    pool = new(SANDBOX_WARM_POOL, "pool", spec={"replicas": 2, "sandboxTemplateRef": {"name": "python"}})
    await client.create(SANDBOX_WARM_POOL, pool, space)

    async def filled() -> bool:
        boxes = (await client.list(SANDBOX, space))["items"]
        return len(boxes) == 2 and all(map(is_ready, boxes))

    async with cluster.controllers(space):
        await until(filled, within=60)


async def _deployment(client: Client) -> SharedObject:
    return await client.get(DEPLOYMENT, names.CONTROLLER, names.NAMESPACE)


def test_helm_lint_accepts_the_chart(helm: Path, tmp_path: Path) -> None:
    said = _run(helm, "lint", "--strict", CHART, home=tmp_path)
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert not {"[WARNING]", "[ERROR]"} & set(said.split())


def test_helm_names_the_image_by_digest(helm: Path, tmp_path: Path) -> None:
    digest = f"sha256:{'0' * 64}"
    for storage, kind in (("crd", "Deployment"), ("aggregated", "StatefulSet")):
        chosen = ("--set", f"image.digest={digest}", "--set", f"storage={storage}", "--skip-crds")
        rendered = yaml.safe_load_all(_run(helm, "template", "sandpool", CHART, *chosen, home=tmp_path))
        (workload,) = [each for each in rendered if each is not None and each["kind"] == kind]
        assert workload["spec"]["template"]["spec"]["containers"][0]["image"] == f"sandpool@{digest}"


def test_helm_renders_the_manifests_of_the_chart(helm: Path, tmp_path: Path) -> None:
    rendered = yaml.safe_load_all(_run(helm, "template", "sandpool", CHART, home=tmp_path))
    made = {each["kind"]: each for each in rendered if each}
    expected = {each["kind"]: each for each in [namespace(), *controller(InstallOptions())]}
    policy = "NetworkPolicy"  # where an empty selector means all
    assert made[policy] == expected[policy]
    assert {kind: without_empties(each) for kind, each in made.items() if kind != policy} == {
        kind: each for kind, each in expected.items() if kind != policy
    }


async def test_helm_installs_upgrades_and_uninstalls(helm: Path, cluster: Cluster, tmp_path: Path) -> None:
    client = cluster.client

    def run(*arguments: str | Path) -> str:
        return _run(helm, "--kubeconfig", cluster.plane.kubeconfig, *arguments, home=tmp_path)

    run("install", "sandpool", CHART, "--set", "image.repository=registry.example/sandpool")
    (container,) = (await _deployment(client))["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/sandpool:{names.TAG}"
    await fill_a_pool(cluster, "by-helm")

    run("upgrade", "sandpool", CHART, "--reuse-values", "--set", "replicaCount=3")
    changed = await _deployment(client)
    assert changed["spec"]["replicas"] == 3
    assert changed["spec"]["template"]["spec"]["containers"][0]["image"] == container["image"]
    run("upgrade", "sandpool", CHART, "--reuse-values")
    assert (await _deployment(client))["metadata"]["generation"] == changed["metadata"]["generation"]
    releases: list[Any] = json.loads(run("list", "--output", "json"))
    assert [(each["name"], each["status"]) for each in releases] == [("sandpool", "deployed")]

    # The kinds stay, and with them everything of theirs.
    run("uninstall", "sandpool")
    with pytest.raises(NotFound):
        await client.get(CLUSTER_ROLE, names.CONTROLLER)
    await client.get(CUSTOM_RESOURCE_DEFINITION, SANDBOX.group_resource)
    assert len((await client.list(SANDBOX, "by-helm"))["items"]) == 2


async def test_kustomize_installs_and_changes_nothing_the_second_time(
    kubernetes_assets: Assets, cluster: Cluster, tmp_path: Path
) -> None:
    client = cluster.client

    def apply(where: str) -> str:
        kubectl = kubernetes_assets.binary("kubectl")
        arguments = ("--kubeconfig", cluster.plane.kubeconfig, "apply", "--server-side", "-k", ROOT / where)
        return _run(kubectl, *arguments, home=tmp_path)

    assert apply("deploy").count("serverside-applied") == len(controller(InstallOptions())) + 5
    await fill_a_pool(cluster, "by-kustomize")
    apply("deploy/router")
    before = await _deployment(client), await client.get(DEPLOYMENT, names.ROUTER, names.NAMESPACE)
    apply("deploy")
    apply("deploy/router")
    assert (await _deployment(client), await client.get(DEPLOYMENT, names.ROUTER, names.NAMESPACE)) == before
