"""What is installed from elsewhere: pinned, with hashes, in development and in the image."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandpool.cli.bench import PAUSE
from sandpool.install.manifests import InstallOptions, controller

ROOT = Path(__file__).parents[1]
LOCKS = ("dev/requirements.lock", "deploy/requirements.lock", "deploy/build-requirements.lock")


def pinned(path: str) -> dict[str, str]:
    """Versions by name, of a lock file."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / path).read_text(), re.MULTILINE))


def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


@pytest.mark.parametrize("path", LOCKS)
def test_every_pinned_package_has_hashes(path: str) -> None:
    entries = re.split(r"^(?=[a-zA-Z0-9])", (ROOT / path).read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) >= len(pinned(path)) > 3  # some have another version for another Python
    for entry in entries:
        assert re.match(r"[\w.-]+==", entry), entry
        assert "--hash=sha256:" in entry, entry


@pytest.mark.parametrize("path", LOCKS[1:])
def test_image_has_the_versions_that_are_tested(path: str) -> None:
    assert pinned(path).items() <= pinned("dev/requirements.lock").items()


def test_lock_files_have_every_dependency() -> None:
    declared = project()
    needed = {name_of(each) for each in declared["project"]["dependencies"]}
    traced = {name_of(each) for each in declared["project"]["optional-dependencies"]["otel"]}
    building = {name_of(each) for each in declared["build-system"]["requires"]}
    assert needed | traced <= pinned("deploy/requirements.lock").keys()
    assert building <= pinned("deploy/build-requirements.lock").keys()
    extras = {name_of(each) for extra in declared["project"]["optional-dependencies"].values() for each in extra}
    developing = {name_of(each) for each in declared["dependency-groups"]["dev"]}
    assert needed | extras | developing <= pinned("dev/requirements.lock").keys()


def test_dependencies_have_a_lowest_and_a_highest_version() -> None:
    declared = project()
    groups = [declared["project"]["dependencies"], declared["build-system"]["requires"]]
    groups += [*declared["project"]["optional-dependencies"].values(), *declared["dependency-groups"].values()]
    for requirement in [each for group in groups for each in group]:
        assert ">=" in requirement, requirement
        assert ",<" in requirement, requirement


def test_image_takes_no_package_without_a_hash() -> None:
    lines = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    installs = [each for line in lines if line.startswith("RUN") for each in re.findall(r"pip install [^&]*", line)]
    assert len(installs) == 3
    for each in installs:
        assert "--require-hashes" in each or ("--no-deps" in each and "--no-build-isolation" in each), each


def test_development_installs_the_lock_file() -> None:
    text = (ROOT / "dev" / "setup").read_text()
    assert "--require-hashes -r dev/requirements.lock" in text
    assert "--no-deps --no-build-isolation -e ." in text


def test_image_names_of_the_recipe_are_arguments_and_the_build_has_a_digest() -> None:
    """The base is what runs: its tag gets security updates, and builders may name a digest."""
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == [f"${{{name}}}" for name in arguments]
    assert list(arguments) == ["BUILD_IMAGE", "BASE_IMAGE"]
    assert re.fullmatch(r"docker\.io/library/python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", arguments["BUILD_IMAGE"])
    assert f"--build-arg BASE_IMAGE={arguments['BASE_IMAGE'].partition(':')[0]}@sha256:" in text


def test_images_of_the_commands_have_digests() -> None:
    assert re.fullmatch(r"registry\.k8s\.io/pause:3\.10@sha256:[0-9a-f]{64}", PAUSE)


def test_image_by_digest_is_installed_as_it_is() -> None:
    image = f"registry.example/sandpool@sha256:{'0' * 64}"
    installed = [each for each in controller(InstallOptions(image)) if each["kind"] == "Deployment"]
    (container,) = installed[0]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image
