"""Private words do not come back: this project uses the terms that an engineer of the field would search for.

Each entry is a word that the project once used, and the term to use instead. An entry has no innocent meaning here, or
lists its exceptions. Words are matched as whole words, in identifiers (``waiting_room``, ``WaitingRoom``) as in prose.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

#: Words of identifiers and prose, and the term to use instead.
WORDS: Final = {
    "_heard": "last_message_at, observe",
    "_patience": "timeout",
    "_told": "reported, repeated",
    "bereaved": "lost_members",
    "birth": "spawn_container",
    "blueprint": "TemplateRevision",
    "booting": "starting",
    "chronicle": "history",
    "courteous": "background",
    "courtesy": "background",
    "errand": "exec_request",
    "estate": "PodResources",
    "gatekeeper": "name what the class does",
    "gift": "pending adoption",
    "happening": "EventSpec",
    "hold_news": "hold_events",
    "inquiry": "prober",
    "is_giving": "pending adoption",
    "keeper": "controller",
    "lane": "PriorityLevels, FairQueue",
    "leaves_doubt": "is_ambiguous",
    "ledger": "MemberWriter, checkpoint",
    "line_up": "submit",
    "lonely": "isolated",
    "look_for": "refresh",
    "lost_pods": "PodGC",
    "noting": "recording, AnnotationWriter",
    "offering": "candidate",
    "people": "users",
    "performer": "ApiWriter",
    "porter": "exec agent",
    "shelf": "ResourceStore",
    "silent_nodes": "NodeLifecycle",
    "standstill": "quiescence",
    "strait": "TcpProxy",
    "streak": "FailureLog",
    "surroundings": "ProcessOptions",
    "switchyard": "router_netns",
    "tally": "probe_state",
    "turnstile": "BackgroundGate",
    "waiting_room": "WaitQueue",
    "wish": "SandboxRequest",
    "workplace": "NodeContext",
}

#: Phrases of prose, and the term to use instead.
PHRASES: Final = {
    r"\b(?-i:[AESN](?:ny|very|ome|o)body|[aesn](?:ny|very|ome|o)body|[Ww]hoever)\b(?![\"'`:])": "name the subject",
    r"\b(a|each|every|the next|this) pass\b(?! (over|through|by))": "reconcile",
    r"\blook(s|ed)? at (a|the|every|its|each) (claim|pool|sandbox|key|pod)\b": "reconcile",
    r"\bwakes? (a|the|every|no|its) (claim|pool|sandbox|key)s?\b": "enqueue",
    r"\bis (heard|told) of\b": "observe, receive an event, report",
}

#: Words of names in the package, and the term to use instead. Prose may contain them.
NAMES: Final = {
    "patience": "timeout, max_delay",
    "patient": "retrying",
    "said": "output, reason",
    "say": "show, report",
    "says": "is, has",
    "tell": "record_event, notify, show",
    "tells": "is, has",
    "told": "reported, conditions",
}
#: The position in a file, a name of Python's.
FILE_POSITION: Final = "tell"

#: Words in files that may contain them, and why.
EXCEPTIONS: Final = {
    ("src/sandpool/node/launcher/rootfs.py", "nobody"): "the Unix user",
    ("src/sandpool/node/network/routed.py", "switchyard"): "namespaces that earlier versions created",
}

#: The message of the Go implementation contains a banned phrase, and clients may read it.
WIRE_TEXT: Final = "the next pass retries from a"

WORD: Final = re.compile(rf"(?<![a-z])({'|'.join(sorted(WORDS))})(s|es)?(?![a-z])")
#: Every finding contains one of these, apart from hyphens and underscores: a plain search skips most lines.
HINTS: Final = (
    *(word.replace("_", "") for word in WORDS),
    "body",
    "whoever",
    " pass",
    "look at",
    "looks at",
    "looked at",
    "wake",
    "heard of",
    "told of",
)
PHRASE: Final = re.compile("|".join(f"(?P<p{number}>{pattern})" for number, pattern in enumerate(PHRASES)), re.I)


def words_of(text: str) -> str:
    """Spell identifiers as lower-case words with underscores: ``WaitingRoom`` and ``waiting-room`` alike."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).replace("-", "_").lower()


def files() -> list[Path]:
    places = ("src/**/*.py", "tests/**/*.py", "benchmarks/**/*.py", "docs/**/*.md", "*.md")
    return sorted(path for place in places for path in ROOT.glob(place) if path != Path(__file__))


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that code gives to functions, classes, parameters, attributes and variables, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=str(name)) | ast.keyword(arg=str(name)) | ast.Name(id=name):
                yield node.lineno, name
            case ast.Attribute(attr=name) if name != FILE_POSITION:
                yield node.lineno, name


def private_names(tree: ast.AST) -> list[str]:
    """Names with a word of ``NAMES``, with their lines and the term to use."""
    return [
        f"{line}: {name!r}: {NAMES[word]}"
        for line, name in names(tree)
        for word in words_of(name).split("_")
        if word in NAMES
    ]


def findings(path: Path, text: str) -> list[str]:
    """Lines with a word that must not come back, and the term to use."""
    name, found = str(path.relative_to(ROOT)), list[str]()
    plain = text.lower().replace("_", "").replace("-", "")
    if not any(hint in plain for hint in HINTS):
        return []
    for number, line in enumerate(text.replace(WIRE_TEXT, "").splitlines(), start=1):
        plain = line.lower().replace("_", "").replace("-", "")
        if not any(hint in plain for hint in HINTS):
            continue
        for match in WORD.finditer(words_of(line)):
            if (name, match[1]) not in EXCEPTIONS:
                found.append(f"{name}:{number}: {match[1]!r}: {WORDS[match[1]]}")
        for match in PHRASE.finditer(line):
            term = list(PHRASES.values())[int((match.lastgroup or "p0")[1:])]
            if (name, match[0].lower()) not in EXCEPTIONS:
                found.append(f"{name}:{number}: {match[0]!r}: {term}")
    return found


def test_private_words_do_not_come_back() -> None:
    found = [finding for path in files() for finding in findings(path, path.read_text())]
    assert not found, "\n" + "\n".join(found)


def test_names_are_no_words_of_speech() -> None:
    paths = (ROOT / "src").rglob("*.py")
    found = [
        f"{path.relative_to(ROOT)}:{each}" for path in paths for each in private_names(ast.parse(path.read_text()))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def _tell(): pass", True),
        ("async def told(self): pass", True),
        ("def f(*, patience=1): pass", True),
        ("f(say=1)", True),
        ("self.is_told = 1", True),
        ("CREATE_PATIENCE = 1", True),
        ("class Patient: pass", True),
        ("file.tell()", False),
        ("x = 'the server says no'", False),
        ("essay = retell = 1", False),
    ],
)
def test_private_names_are_found(code: str, found: bool) -> None:
    assert bool(private_names(ast.parse(code))) == found


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("class WaitingRoom:", "waiting_room"),
        ("self.waiting_room = 1", "waiting_room"),
        ("# The porters run it.", "porter"),
        ("Nobody waits for it.", "Nobody"),
        ('user = "nobody"', ""),
        ("    return 1  # before the next pass", "the next pass"),
        ("exporter and importer", ""),
        ("a pass over the list", ""),
    ],
)
def test_words_are_found_in_identifiers_and_prose(text: str, word: str) -> None:
    found = findings(ROOT / "src/sandpool/example.py", text)
    assert [word in line for line in found] == ([True] if word else [])
