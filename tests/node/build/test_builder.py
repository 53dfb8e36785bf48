"""Images that are built on this machine, in sandboxes, without a network of the outside."""

from __future__ import annotations

import os
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandpool.engine.clock import SystemClock
from sandpool.node.build.builder import Builder, BuildOptions
from sandpool.node.build.dockerfile import parse_dockerfile
from sandpool.node.build.recipe import MOUNTED, BuildFailure, Configure, Copy, Packages, Recipe, Run, Step
from sandpool.node.build.sandbox import BuildSandbox
from sandpool.node.images.builtin import BuiltInImages
from sandpool.node.images.pip_settings import host_settings
from sandpool.node.images.reference import parse
from sandpool.node.images.resolver import ImageResolver, import_image
from sandpool.node.images.store import ImageInUse, ImageStore, StoredImage
from sandpool.node.runtimes.runtime import HostToolchain, ImageLayers
from tests.support.fake_node_parts import FakeSecrets
from tests.support.isolation import RUNTIMES, rig
from tests.support.tiny_image import copy_programs

pytestmark = pytest.mark.isolation


class Recorded:
    """The recorded output of a build."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.text = b""
        self.hits = 0

    def step(self, number: int, total: int, text: str) -> None:
        self.steps.append(f"{number}/{total} {text}")

    def cached(self) -> None:
        self.hits += 1

    def output(self, data: bytes) -> None:
        self.text += data

    def done(self, seconds: float) -> None: ...


class Workshop:
    def __init__(self, directory: Path, sandbox: BuildSandbox) -> None:
        self.directory = directory
        self.images = directory / "images"
        self.store = ImageStore(self.images, set)
        self.sandbox = sandbox
        self.progress = Recorded()
        self.pip: dict[str, str] = {"no-index": "true"}

    async def build(self, recipe: Recipe | str, name: str = "mine", **arguments: str) -> StoredImage:
        self.progress = Recorded()
        parsed = parse_dockerfile(recipe) if isinstance(recipe, str) else recipe
        built_in = BuiltInImages(self.images / "built-in", set)
        builder = Builder(self.store, built_in, self.sandbox, self.progress, SystemClock())
        options = BuildOptions(self.directory, self.directory / "cache", arguments, self.pip, {})
        return await builder.build(parse(name), parsed, options)

    @property
    def output(self) -> str:
        return self.progress.text.decode()


@pytest_asyncio.fixture
async def workshop(tmp_path: Path) -> AsyncIterator[Workshop]:
    os.chmod(tmp_path, 0o755)
    sandbox = BuildSandbox(tmp_path / "build", SystemClock(), lambda _: None)
    try:
        yield Workshop(tmp_path, sandbox)
    finally:
        await sandbox.close()
    assert not sandbox.directory.exists() or not os.listdir(sandbox.directory)


def run(script: str, **directories: Path) -> Step:
    return Run(f"RUN {script}", ("/bin/sh", "-c", script), directories=directories)


def make_wheel(directory: Path, name: str, word: str = "this") -> None:
    """A package with one module and one program, which prints ``word``."""
    directory.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"def main(): print('{word} is {name}')\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n")
        wheel.writestr(f"{info}/RECORD", "")


async def test_steps_build_on_each_other_and_run_once(workshop: Workshop) -> None:
    (workshop.directory / "app").mkdir()
    (workshop.directory / "app/data").write_text("copied")
    steps = (
        run("echo one > /opt/one; echo x > /opt/two"),
        Copy("COPY", ("app",), "/opt/app"),
        run("cat /opt/one /opt/app/data; rm /opt/two; ls /opt/two"),
    )
    with pytest.raises(BuildFailure, match="exit code 2"):
        await workshop.build(Recipe("python", steps))
    assert workshop.output.startswith("one\ncopied") and "/opt/two" in workshop.output
    fixed = (*steps[:2], run("cat /opt/one /opt/app/data"))
    first = await workshop.build(Recipe("python", fixed))
    assert workshop.progress.hits == 2, "the steps before the one that failed"
    assert len(first.layers) == 3
    again = await workshop.build(Recipe("python", fixed))
    assert (workshop.progress.hits, workshop.output, again.id) == (3, "", first.id)
    (workshop.directory / "app/data").write_text("changed")
    assert (await workshop.build(Recipe("python", fixed))).id != first.id
    assert (workshop.progress.hits, workshop.output) == (1, "one\nchanged")


async def test_packages_of_python_are_installed_for_every_command(workshop: Workshop) -> None:
    make_wheel(workshop.directory / "wheels", "greeting")
    workshop.pip["find-links"] = str(workshop.directory / "wheels")
    steps = (
        Packages("pip", pip=("greeting",)),
        run("greeting; python3 -c 'import greeting; print(greeting.__file__)'"),
    )
    stored = await workshop.build(Recipe("python", steps))
    assert workshop.output.splitlines()[-2] == "this is greeting"
    assert workshop.output.splitlines()[-1].startswith("/opt/venv/")
    for layer in stored.layers:
        assert not (layer / ".sandpool").exists(), "settings of this machine are not part of the image"
        assert not (layer / "etc/resolv.conf").exists()
    resolver = ImageResolver(workshop.images, set, FakeSecrets())
    image = await resolver.resolve("mine", "IfNotPresent", {})
    assert isinstance(image.root, HostToolchain) and image.root.layers == stored.layers
    assert image.command and image.user == "1000", "as the built-in image"
    async with rig(RUNTIMES["bwrap"]) as boxes:
        result, output, errors = await boxes.run(
            "sh",
            "-c",
            "greeting; pip --version; touch /opt/venv/lib/x && echo writable",
            root=image.root,
            env=dict(image.env),
        )
        assert (result.code, output.splitlines()[0]) == (0, "this is greeting"), errors
        assert output.splitlines()[-1] == "writable", "pip can install more in a running sandbox"


async def test_requirements_are_part_of_the_cache_key(workshop: Workshop) -> None:
    for name in ("first", "second"):
        make_wheel(workshop.directory / "wheels", name)
    workshop.pip["find-links"] = str(workshop.directory / "wheels")
    one = await workshop.build(Recipe("python", (Packages("pip", requirements=b"first\n"),)))
    two = await workshop.build(Recipe("python", (Packages("pip", requirements=b"first\nsecond\n"),)))
    assert one.id != two.id and "Successfully installed first-1.0 second-1.0" in workshop.output
    with pytest.raises(BuildFailure, match="exit code"):
        await workshop.build(Recipe("python", (Packages("pip", pip=("missing",)),)))


async def test_content_of_mounted_directories_is_part_of_the_cache_key(workshop: Workshop) -> None:
    data = workshop.directory / "data"
    data.mkdir()
    (data / ".dockerignore").write_text("*\n")
    recipe = Recipe("python", (run(f"cat {MOUNTED}/data/file", data=data),))
    for content in ("old", "new"):
        (data / "file").write_text(content)
        await workshop.build(recipe)
        assert workshop.output == content
    await workshop.build(recipe)
    assert workshop.progress.hits == 1, "an unchanged directory"


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((Packages("pip", pip=("greeting",)), run("greeting")), id="packages"),
        pytest.param((run(f"grep -aho 'print.*' {MOUNTED}/links-0/*"),), id="run"),
    ],
)
async def test_replaced_package_of_a_local_directory_is_installed(workshop: Workshop, steps: tuple[Step, ...]) -> None:
    workshop.pip["find-links"] = str(workshop.directory / "wheels")
    for word in ("this", "that"):
        make_wheel(workshop.directory / "wheels", "greeting", word)
        await workshop.build(Recipe("python", steps))
        assert f"{word} is greeting" in workshop.output
    await workshop.build(Recipe("python", steps))
    assert workshop.progress.hits == len(steps), "an unchanged directory"


async def test_dockerfile_builds_on_an_imported_image(workshop: Workshop) -> None:
    tree = workshop.directory / "tree"
    (tree / "etc").mkdir(parents=True)
    copy_programs(tree, "/bin/sh", "/bin/cat", "/bin/ls", "/bin/rm", "/usr/bin/id", "/bin/mkdir")
    (tree / "etc/old").write_text("old")
    import_image(workshop.store, parse("tiny"), str(tree))
    (workshop.directory / "file").write_text("from the context")
    stored = await workshop.build(
        """FROM tiny
ARG GREETING=hello
ENV WHO=world WHERE=${GREETING}-there
WORKDIR /srv
WORKDIR app
COPY file ./
RUN id -u; cat file; echo " $GREETING $WHO $WHERE"; rm /etc/old; ls /etc
USER 1000
CMD ["cat", "/srv/app/file"]
""",
        GREETING="hi",
    )
    assert workshop.output.split("\n")[:2] == ["0", "from the context hi world hi-there"]
    assert "old" not in workshop.output
    config = stored.config
    assert (config.working_dir, config.user, config.command) == ("/srv/app", "1000", ("cat", "/srv/app/file"))
    assert config.env["WHERE"] == "hi-there" and "GREETING" not in config.env
    image = await ImageResolver(workshop.images, set, FakeSecrets()).resolve("mine", "Never", {})
    assert isinstance(image.root, ImageLayers) and len(image.root.layers) == 3
    async with rig(RUNTIMES["bwrap"]) as boxes:
        result, output, errors = await boxes.run(
            "sh", "-c", "cat /srv/app/file; ls /etc", root=image.root, env={"PATH": "/bin:/usr/bin"}
        )
        assert (result.code, output) == (0, "from the contexthostname\nhosts\nresolv.conf\n"), errors


async def test_an_image_can_be_built_on_a_built_one(workshop: Workshop) -> None:
    await workshop.build(Recipe("python", (run("echo 1 > /opt/a"), Configure("ENV", env={"A": "1"}))), "first")
    second = await workshop.build(Recipe("first", (run("echo $A; cat /opt/a; echo 2 > /opt/b"),)), "second")
    assert workshop.output == "1\n1\n" and len(second.layers) == 2 and second.config.env == {"A": "1"}
    assert workshop.store.remove(parse("first"))
    assert all(layer.is_dir() for layer in second.layers), "the second image needs the layer of the first"
    workshop.store.used = lambda: {second.layers[0]}
    with pytest.raises(ImageInUse):
        workshop.store.remove(parse("second"))
    workshop.store.used = set
    assert workshop.store.remove(parse("second"))
    assert not any(layer.exists() for layer in second.layers)


async def test_a_base_that_does_not_exist_is_named(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BuildFailure, match=r"FROM nothing/here: it is not on this machine and could not be pulled"):
        await workshop.build(Recipe("nothing/here", ()))
    for tagged in ("python:3.13-slim", f"python@sha256:{'a' * 64}"):
        with pytest.raises(BuildFailure, match=r'could not be pulled: .* "FROM python" is the built-in image'):
            await workshop.build(Recipe(tagged, ()))
    with pytest.raises(BuildFailure, match="is not an image name"):
        await workshop.build(Recipe("No Name", ()))


async def test_a_command_cannot_read_the_files_of_the_machine(workshop: Workshop) -> None:
    secret = workshop.directory / "secret"
    secret.write_text("hush")
    secret.chmod(0o644)
    with pytest.raises(BuildFailure, match="exit code"):
        await workshop.build(Recipe("python", (run(f"cat {secret}"),)))
    assert "hush" not in workshop.output


@pytest.mark.long
async def test_pandas_is_installed_from_the_package_index_of_this_machine(workshop: Workshop) -> None:
    """Needs the network of this machine, and whatever settings its pip has."""
    workshop.pip = host_settings()
    script = "python3 -c 'import pandas; print(pandas.DataFrame({1: [2, 3]}).sum().sum())'"
    await workshop.build(Recipe("python", (Packages("pip", pip=("pandas",)), run(script))))
    assert workshop.output.splitlines()[-1] == "5"
