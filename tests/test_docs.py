"""The documentation: links lead somewhere, and a broken one fails the build of the site."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from markdown.extensions.toc import slugify  # type: ignore[import-untyped]

PROJECT = Path(__file__).parents[1]
#: Pages that are read in the repository and not on the site, whose build does not see their links.
OUTSIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def build(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build a site with the settings of the project and two pages, of which one is ``text``."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    settings = yaml.safe_load((PROJECT / "mkdocs.yml").read_text())
    kept = {name: settings[name] for name in ("site_name", "strict", "use_directory_urls", "validation")}
    docs = directory / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(text)
    (docs / "other.md").write_text("# Other\n\n## A section\n")
    config = {**kept, "markdown_extensions": [{"toc": {"permalink": True}}], "theme": "mkdocs", "plugins": []}
    (directory / "mkdocs.yml").write_text(yaml.safe_dump(config))
    build(load_config(str(directory / "mkdocs.yml"), site_dir=str(directory / "site")))


@pytest.mark.parametrize("link", ["other.md#no-section", "#no-section", "missing.md"])
def test_broken_anchor_fails_the_build(link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mkdocs.exceptions import Abort

    build(tmp_path, "# Here\n\n[there](other.md#a-section) [here](#here)\n", monkeypatch)
    shutil.rmtree(tmp_path / "docs")
    with pytest.raises(Abort, match="strict mode"):
        build(tmp_path, f"# Here\n\n[there]({link})\n", monkeypatch)


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    broken = []
    for name in OUTSIDE:
        for link in _LINK.findall(_CODE.sub("", (PROJECT / name).read_text())):
            path, _, anchor = link.partition("#")
            if "://" in link:
                continue
            target = PROJECT / (path or name)
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append((name, link))
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page."""
    headings = _HEADING.findall(_CODE.sub("", page.read_text()))
    return {slugify(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each).replace("`", ""), "-") for each in headings}


#: Where users read what root is needed for. Other pages send them there, so that none contradicts it.
_ABOUT_ROOT = "local.md#with-sudo-as-root-as-another-user"
_ROOT = re.compile(r"needs? (?:no )?root|without\s+root|\bas root\b|\bsudo\b", re.IGNORECASE)
#: Pages about developing and measuring Sandpool.
_FOR_DEVELOPERS = {"development.md", "guarantees.md", "performance.md", "test-worlds.md"}


def test_pages_for_users_lead_to_the_one_section_about_root() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md"), *(PROJECT / "docs" / "howto").glob("*.md")]
    local = PROJECT / "docs" / "local.md"
    assert _ABOUT_ROOT.partition("#")[2] in anchors(local)
    silent = [
        page.name
        for page in pages
        if page != local and page.name not in _FOR_DEVELOPERS
        if _ROOT.search(text := page.read_text()) and _ABOUT_ROOT not in text
    ]
    assert silent == []


#: The walks through the controllers: heading, folder of the files, and the most modules of it that a reader meets.
_WALKS = [("A warm claim, step by step", "claim", 8), ("A pool's refill, step by step", ".", 11)]
_SPAN = re.compile(r"`([^`\s]+)`")
_NAMED = re.compile(r"`([\w/]+\.py)`, `([\w.]+)`(?: and `([\w.]+)`)?")


def steps(heading: str) -> list[str]:
    """The numbered steps below a heading of docs/architecture.md, each in one line."""
    page = (PROJECT / "docs" / "architecture.md").read_text()
    section = page.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return [re.sub(r"\s+", " ", step) for step in re.findall(r"^\d+\. (.*?)(?=^\d+\. |\n\n|\Z)", section, re.M | re.S)]


def definitions(tree: ast.Module) -> Iterator[str]:
    """Functions, classes and methods, the last with and without their class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield from (node.name, *methods, *(f"{node.name}.{method}" for method in methods))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def mentions(tree: ast.Module) -> Iterator[str]:
    """Definitions and what is imported, and attributes with the name before them, such as ``quota.admit``."""
    yield from definitions(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ".".join(ast.unparse(node).split(".")[-2:])


@pytest.mark.parametrize(("heading", "folder", "most"), _WALKS)
def test_walks_through_the_controllers_name_what_exists(heading: str, folder: str, most: int) -> None:
    place = PROJECT / "src" / "sandpool" / "controllers" / folder
    modules = set[str]()
    assert len(steps(heading)) >= 8
    for step in steps(heading):
        spans = _SPAN.findall(step)
        files = {span: ast.parse((place / span).read_text()) for span in spans if span.endswith(".py")}
        assert files, f"no file: {step}"
        modules |= files.keys()
        for file, *names in _NAMED.findall(step):
            assert set(filter(None, names)) <= set(definitions(files[file])), f"not defined in {file}: {names}"
        known = {name for tree in files.values() for name in mentions(tree)}
        named = {span for span in spans if not span.endswith(".py")}
        assert named <= known, f"unknown in {sorted(files)}: {sorted(named - known)}"
    assert len(modules) <= most, sorted(modules)
