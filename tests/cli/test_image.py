from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from sandpool.cli.main import main
from sandpool.cli.serving import node_directory
from sandpool.node.images.resolver import ImageResolver
from sandpool.node.pods.context import PodOptions
from sandpool.node.runtimes.runtime import ImageLayers
from tests.support.fake_node_parts import FakeSecrets

BUILT_IN = "is a built-in image and cannot be replaced or removed"


def run(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["image", *arguments, "--data-dir", str(tmp_path / "data")])


def test_image_is_imported_listed_and_removed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("x" * 1_500_000)
    imported = run(tmp_path, "import", str(tmp_path / "tree"), "mine:1")
    assert imported.exit_code == 0, imported.output
    assert imported.output.startswith("mine:1   1.5 MB   sha256:")
    listed = run(tmp_path, "ls").output.splitlines()
    assert listed[0].split() == ["NAME", "ID", "SIZE", "FROM"]
    names = [line.split()[0] for line in listed[1:]]
    assert names == ["sandpool.local/python", "sandpool.local/sandboxd", "mine:1"]
    assert run(tmp_path, "rm", "mine:1").output == "mine:1 removed\n"
    assert len(run(tmp_path, "ls").output.splitlines()) == 3


def test_images_are_listed_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("x" * 1_500_000)
    run(tmp_path, "import", str(tmp_path / "tree"), "mine:1")
    items = json.loads(run(tmp_path, "ls", "-o", "json").output)["items"]
    assert yaml.safe_load(run(tmp_path, "ls", "-o", "yaml").output)["items"] == items
    assert [each["name"] for each in items] == run(tmp_path, "ls", "-o", "name").output.split()
    assert items[-1] == {**items[-1], "name": "mine:1", "size": 1_500_000, "from": str(tmp_path / "tree")}
    short, whole = (run(tmp_path, "ls", *more).output.splitlines()[-1].split()[1] for more in ((), ("-o", "wide")))
    assert items[-1]["id"] == f"sha256:{whole}"
    assert whole.startswith(short) and len(short) == 12


@pytest.mark.parametrize("started", ["up", "node"])
async def test_node_finds_imported_images(tmp_path: Path, started: str) -> None:
    """Wherever it was at work: below the data of everything, or in a directory of its own."""
    (tmp_path / "tree").mkdir()
    directory = tmp_path / "data" if started == "node" else node_directory(tmp_path / "data")
    settings = PodOptions("node", directory)
    settings.pods.mkdir(parents=True)
    assert run(tmp_path, "import", str(tmp_path / "tree"), "mine:1").exit_code == 0
    found = await ImageResolver(directory / "images", set, FakeSecrets()).resolve("mine:1", "Never", {})
    assert isinstance(found.root, ImageLayers)


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("FROM python\n")
    no_image = "is no image: it is neither a directory, a tar of a file system, nor an archive of podman or docker save"
    for arguments, message in (
        (("import", f"{tmp_path}/text", "a"), f"Error: {tmp_path}/text {no_image}\n"),
        (("import", "/nowhere", "a"), "Error: /nowhere: no such file or directory\n"),
        (("rm", "a"), "Error: no such image: a:latest; `sandpool image ls` lists them\n"),
        (("rm", "sandpool.local/python:x"), f"Error: sandpool.local/python:x {BUILT_IN}\n"),
        (("import", ".", "r.io/agent-sandbox/sandboxd"), f"Error: r.io/agent-sandbox/sandboxd:latest {BUILT_IN}\n"),
    ):
        result = run(tmp_path, *arguments)
        assert (result.exit_code, result.output) == (1, message)
    assert "is not an image name" in run(tmp_path, "rm", "A b").output
