from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from sandpool.cli.main import main


def run(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["image", *arguments, "--data-dir", str(tmp_path / "data")])


def test_an_image_comes_and_goes(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("x" * 1_500_000)
    imported = run(tmp_path, "import", str(tmp_path / "tree"), "mine:1")
    assert imported.exit_code == 0, imported.output
    assert imported.output.startswith("mine:1   1.5 MB   sha256:")
    listed = run(tmp_path, "ls").output.splitlines()
    assert listed[0].split() == ["NAME", "ID", "SIZE", "FROM"]
    assert listed[1].startswith("sandpool.local/python ")
    assert listed[2].split()[0] == "mine:1"
    assert run(tmp_path, "rm", "mine:1").output == "mine:1 removed\n"
    assert len(run(tmp_path, "ls").output.splitlines()) == 2


def test_mistakes_are_said_in_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        (("import", "/nowhere", "a"), "Error: /nowhere: there is no such file or directory\n"),
        (("rm", "a"), "Error: there is no image a:latest; see: sandpool image ls\n"),
    ):
        result = run(tmp_path, *arguments)
        assert (result.exit_code, result.output) == (1, message)
    assert "is not the name of an image" in run(tmp_path, "rm", "A b").output
