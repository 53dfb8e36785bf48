"""Helm and kustomize themselves, on a real Kubernetes: what they install works, changes and goes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import (
    API_SERVICE,
    API_SERVICES,
    CLUSTER_ROLE,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    SANDBOX,
    SANDBOX_TEMPLATE,
    SANDBOX_WARM_POOL,
    SANDPOOL,
    STATEFUL_SET,
)
from sandpool.api.resource import SharedObject
from sandpool.engine.clock import SystemClock
from sandpool.install import names
from sandpool.install.definitions import served
from sandpool.install.installer import Installer, type_of
from sandpool.install.manifests import InstallOptions, controller, core, definitions, namespace
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until
from tests.dev.deploy.test_chart import kept, without_empties
from tests.support.api_access import HttpEndpoint
from tests.support.assets import Assets
from tests.support.cluster_collector import is_gone
from tests.support.control_plane import ControlPlane
from tests.support.installed_cluster import Cluster
from tests.support.users import ADMIN

pytestmark = pytest.mark.kubernetes

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "sandpool"
VOLUME = f"data-{names.APISERVER}-0"


def _finished(*command: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _run(*command: str | Path, home: Path) -> str:
    done = _finished(*command, home=home)
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
    expected = {each["kind"]: kept(each) for each in [namespace(), *controller(InstallOptions())]}
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


@pytest.fixture
async def other_cluster(kubernetes_assets: Assets) -> AsyncIterator[tuple[ControlPlane, Client]]:
    """One of its own: no namespace of it can be deleted while APIServices have no server."""
    with ControlPlane(kubernetes_assets, fsync=False) as plane:
        endpoint = HttpEndpoint(plane.url, plane.ca, plane.tokens)
        yield plane, endpoint.client_for(ADMIN)
        await endpoint.close()


async def test_helm_keeps_the_volume_and_the_storage(
    helm: Path, other_cluster: tuple[ControlPlane, Client], tmp_path: Path
) -> None:
    plane, client = other_cluster

    def finished(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return _finished(helm, "--kubeconfig", plane.kubeconfig, *arguments, home=tmp_path)

    def run(*arguments: str | Path) -> None:
        done = finished(*arguments)
        assert done.returncode == 0, done.stderr

    def refused(*arguments: str | Path) -> str:
        done = finished(*arguments)
        assert done.returncode != 0, done.stdout
        return done.stderr

    async def kept() -> bool:
        """Whether requests are passed on, and the volume and its namespace stay."""
        space = await client.get(NAMESPACE, names.NAMESPACE)
        await client.get(PERSISTENT_VOLUME_CLAIM, VOLUME, names.NAMESPACE)
        passed_on = [bool((await client.get(API_SERVICE, name))["spec"].get("service")) for name in API_SERVICES]
        return "deletionTimestamp" not in space["metadata"] and all(passed_on)

    aggregated = ("--skip-crds", "--set", "storage=aggregated")
    run("install", "sandpool", CHART, *aggregated)
    await client.get(STATEFUL_SET, names.APISERVER, names.NAMESPACE)
    # No StatefulSet controller runs here, which makes it.
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volume = new(PERSISTENT_VOLUME_CLAIM, VOLUME, spec=storage)
    await client.create(PERSISTENT_VOLUME_CLAIM, volume, names.NAMESPACE)
    assert "sandpool storage move --to crd" in refused("upgrade", "sandpool", CHART, "--set", "storage=crd")
    await client.get(STATEFUL_SET, names.APISERVER, names.NAMESPACE)
    run("upgrade", "sandpool", CHART, "--reuse-values")

    run("uninstall", "sandpool")
    with pytest.raises(NotFound):
        await client.get(STATEFUL_SET, names.APISERVER, names.NAMESPACE)
    assert await kept()
    assert "Leave its APIServices as they are" in refused("install", "sandpool", CHART)
    # Helm creates definitions before it asks the chart.
    assert "Delete the definitions: kubectl delete crd" in refused("install", "sandpool", CHART, *aggregated)
    for type in SANDPOOL:
        await client.delete(CUSTOM_RESOURCE_DEFINITION, type.group_resource)
        await until(lambda name=type.group_resource: is_gone(client, CUSTOM_RESOURCE_DEFINITION, name))  # type: ignore[misc]
    run("install", "sandpool", CHART, *aggregated)
    await client.get(STATEFUL_SET, names.APISERVER, names.NAMESPACE)
    assert await kept()


async def test_helm_takes_over_what_a_move_of_the_storage_has_made(
    helm: Path, other_cluster: tuple[ControlPlane, Client], tmp_path: Path
) -> None:
    """As docs/kubernetes.md says. The objects are those that a move leaves."""
    plane, client = other_cluster

    def run(*arguments: str | Path) -> None:
        _run(helm, "--kubeconfig", plane.kubeconfig, *arguments, home=tmp_path)

    run("install", "sandpool", CHART)
    for each in core(InstallOptions()):
        if type_of(each) in (CUSTOM_RESOURCE_DEFINITION, DEPLOYMENT):
            await client.delete(type_of(each), each["metadata"]["name"], each["metadata"].get("namespace"))
    options = InstallOptions(storage="aggregated")
    await Installer(client, SystemClock(), lambda line: None, force=True).install([namespace(), *core(options)])
    run("upgrade", "sandpool", CHART, "--reuse-values", "--take-ownership", "--set", "storage=aggregated")
    run("upgrade", "sandpool", CHART, "--reuse-values")
    server = await client.get(STATEFUL_SET, names.APISERVER, names.NAMESPACE)
    assert server["metadata"]["annotations"]["meta.helm.sh/release-name"] == "sandpool"
    for name in API_SERVICES:
        assert (await client.get(API_SERVICE, name))["spec"]["service"]["name"] == names.APISERVER


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
