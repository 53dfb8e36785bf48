"""The files in deploy/ are up to date, and kustomize renders the same objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.deploy.files import files
from sandpool.api.resource import Object
from sandpool.api.schema import crds
from sandpool.install import node
from sandpool.install.manifests import InstallOptions, core, namespace, router
from tests.support.kubectl import find_kubectls

DEPLOY = Path(__file__).parents[3] / "deploy"


def documents(text: str) -> list[Object]:
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each is not None]


def by_identity(objects: Iterable[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def test_deploy_files_are_up_to_date() -> None:
    for path, text in files().items():
        assert (DEPLOY / path).read_text() == text, f"{path} is out of date: run make deploy"


def test_lean_definitions_are_up_to_date() -> None:
    for name, text in crds.manifests("lean").items():
        assert (DEPLOY / "lean" / name).read_text() == text, f"{name} is out of date: run make crds"


def test_deploy_has_no_other_files() -> None:
    made = {*files(), *(f"{where}/{name}" for where in ("crds", "lean") for name in crds.manifests())}
    there = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    assert there - made == {"Dockerfile", "requirements.lock", "build-requirements.lock"}


@pytest.mark.parametrize("where", [".", "aggregated", "router", "node", "monitoring"])
def test_kustomize_renders_the_same_objects(where: str) -> None:
    kubectls = find_kubectls()
    if not kubectls:
        pytest.skip("kubectl is not installed")
    kubectl = next(iter(kubectls.values()))
    made = subprocess.run([kubectl, "kustomize", DEPLOY / where], capture_output=True, text=True, check=True)
    expected = {
        ".": documents((DEPLOY / "sandpool.yaml").read_text()),
        "aggregated": [namespace(), *core(InstallOptions(storage="aggregated"))],
        "router": router(InstallOptions()),
        "node": node.objects(),
        "monitoring": documents((DEPLOY / "monitoring" / "monitoring.yaml").read_text()),
    }[where]
    assert by_identity(documents(made.stdout)) == by_identity(expected)


def test_image_needs_neither_shell_nor_root() -> None:
    stages = (DEPLOY / "Dockerfile").read_text().split("\nFROM ")
    last = dict(line.split(" ", 1) for line in stages[-1].splitlines()[1:] if line)
    assert len(stages) == 3, "comments, a stage that builds, and one that is kept"
    assert "RUN" not in last
    assert last["USER"] == "65532:65532"
    entrypoint: list[Any] = json.loads(last["ENTRYPOINT"])
    assert entrypoint[1:] == ["-m", "sandpool.cli.main"]
