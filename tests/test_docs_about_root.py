"""No page contradicts docs/local.md about root: what needs it, and who runs what without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
LOCAL = PROJECT / "docs" / "local.md"
#: Pages about developing and measuring Sandpool: there, tests and benchmarks need root.
FOR_DEVELOPERS = {"development.md", "guarantees.md", "performance.md", "test-worlds.md"}

#: The rows of the table of local.md, and how pages name what they are about.
NEEDS_ROOT = {
    "limits of CPU, memory and processes": r"\blimits\b",
    "a network between pods and to the internet": r"\bnetworks?\b",
    "a host user for each sandbox": r"\bhost users?\b|\buser of its own\b",
    "size limits of volumes on disk; a writable root on disk": r"\b[Ss]izes? of volumes\b|\broot on disk\b|\bon disk\b",
    "the runtimes crun, runc and gVisor": r"\bcrun\b|\brunc\b|\bgVisor\b|\brunsc\b",
    "building images with commands or packages": r"\bimage build\b|\b[Bb]uild(s|ing)?\b",
}
#: Parts of the home, which runs without root too.
PARTS = re.compile(
    r"`sandpool up`|`sandpool node`|\bhome\b|\bnode agent\b|\blauncher\b|\bAPI server\b|\bstore\b|\brouter\b"
)

_CODE = re.compile(r"^```.*?^```|^    .*?$", re.MULTILINE | re.DOTALL)
_NOT_NEEDED = re.compile(r"\bneeds? (no|neither) root\b|\bdoes not need root\b|\bworks? without root\b")
_NEEDED = re.compile(r"\bneeds? root\b|\bneeds? \[sudo\]|(?<!-)\b[Oo]nly root\b|\broot only\b|\bas root only\b")
_RUNS_AS_ROOT = re.compile(r"(?<!not run )\bas root\b|^\s*root\b|(?<!API )\buser of its own\b")
#: What makes a statement about root hold for a home without root as well.
_CONDITION = re.compile(
    r"\b([Ii]f|[Ww]here|[Ww]hen|[Uu]nless|otherwise|[Ww]ithout root|with sudo|the user that starts it|started)\b"
)
#: Statements about sudo, and about what belongs to root.
_EXEMPT = re.compile(r"\bsudo\b|\bnever as root\b|\bprocesses of root\b|^\s*#")


def pages() -> list[Path]:
    found = [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md"), *(PROJECT / "docs" / "howto").glob("*.md")]
    return sorted(page for page in found if page != LOCAL and page.name not in FOR_DEVELOPERS)


def statements(text: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence of a page, and each cell of its tables, with what it belongs to: its paragraph or row."""
    for block in re.split(r"\n\s*\n|\n(?=[*-] |#+ )", _CODE.sub("", text)):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        if rows:
            yield from ((cell, row) for row in rows for cell in row.strip("| ").split(" | "))
        else:
            paragraph = re.sub(r"\s+", " ", block.strip().lstrip("*- "))
            yield from ((sentence, paragraph) for sentence in re.split(r"(?<=[.:;]) (?=[A-Z`])", paragraph))


def contradictions(text: str) -> list[str]:
    found = []
    for sentence, context in statements(text):
        topics = [row for row, named in NEEDS_ROOT.items() if re.search(named, context)]
        if _NOT_NEEDED.search(sentence) and any(re.search(NEEDS_ROOT[row], sentence) for row in topics):
            found.append(f"needs root in local.md: {sentence}")
        elif _NEEDED.search(sentence) and not topics and not _EXEMPT.search(sentence):
            found.append(f"missing in the table of local.md: {sentence}")
        elif (
            _RUNS_AS_ROOT.search(sentence)
            and PARTS.search(context)
            and not _CONDITION.search(sentence)
            and not _EXEMPT.search(context)
        ):
            found.append(f"also runs without root: {sentence}")
    return found


def test_the_table_of_local_md_is_the_one_that_pages_are_compared_with() -> None:
    table = LOCAL.read_text().partition("| missing without root |")[2].partition("\n\n")[0]
    assert [row.strip("| ").split(" | ")[0] for row in table.splitlines()[2:]] == list(NEEDS_ROOT)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_page_contradicts_local_md_about_root(page: Path) -> None:
    found = contradictions(page.read_text())
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "- The node agent of `sandpool up` runs in the process of the API and the store, as root. It is one of them.",
        "| process | user |\n|---|---|\n| launcher (child of the node) | root, as small as possible |",
        "The router of `sandpool up` has a user of its own.",
        "Building an image with `image build` needs no root.",
        "Suspending a sandbox needs root.",
    ],
)
def test_contradictions_are_found(text: str) -> None:
    assert contradictions(text)


@pytest.mark.parametrize(
    "text",
    [
        "If it was started by root, the node agent of `sandpool up` runs as root.",
        "| process | user |\n|---|---|\n| launcher | root; without root the user that starts it |",
        "Building with packages needs root.",
        "The local home needs no root. For limits of CPU and memory, start it with sudo.",
    ],
)
def test_statements_that_agree_are_none(text: str) -> None:
    assert contradictions(text) == []
