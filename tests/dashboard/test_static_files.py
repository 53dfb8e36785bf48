"""The files of the pages: nothing that makes markup of text, nothing from elsewhere, and all of them used."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from sandpool.dashboard.execution import loopback_address
from sandpool.dashboard.pages import Pages

PAGES = Pages()
SCRIPTS = {name: found.content.decode() for name, found in PAGES.files.items() if name.endswith(".js")}
WAYS_TO_MARKUP = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\b|srcdoc"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_of_text(name: str) -> None:
    assert re.findall(WAYS_TO_MARKUP, SCRIPTS[name]) == []
    assert "// @ts-check" in SCRIPTS[name]


def test_nothing_is_loaded_from_elsewhere() -> None:
    for name, found in PAGES.files.items():
        addresses = set(re.findall(r"https?://[^\s\"'`)<]+", found.content.decode()))
        assert addresses <= {"http://www.w3.org/2000/svg", "http://127.0.0.1:8080/metrics"}, name


def test_every_script_is_imported_and_every_import_exists() -> None:
    imported = {each for text in SCRIPTS.values() for each in re.findall(r'from "\./([a-z]+\.js)"', text)}
    assert imported <= SCRIPTS.keys()
    assert SCRIPTS.keys() - imported == {"app.js", "login.js"}


class Inline(HTMLParser):
    """Collects what the policy of the pages would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.settings = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.found += [name for name in names if name.startswith("on") or name == "style"]
        if tag == "script" and "src" not in names:
            self.found.append("inline script")
        if tag == "meta" and names.get("name") == "sandpool":
            self.settings = names.get("content") or ""


def test_a_page_is_escaped_and_has_nothing_inline() -> None:
    title = '"><script>alert(1)</script>'
    reader = Inline()
    page = PAGES.app({"title": title, "session": "s"})
    reader.feed(page)
    assert reader.found == []
    assert "<script>alert" not in page
    assert "alert(1)" in reader.settings


def test_paths_of_files_change_with_their_content() -> None:
    assert f"/static/{PAGES.version}/app.js" in PAGES.login({}).replace("login.js", "app.js")
    assert re.fullmatch("[0-9a-f]{12}", PAGES.version)


def test_each_sandbox_has_a_loopback_address_of_its_own() -> None:
    """None is that of the dashboard, so browsers share no cookie between them."""
    addresses = {loopback_address(f"uid-{number}") for number in range(500)}
    assert len(addresses) > 495
    assert all(re.fullmatch(r"127\.(6[4-9]|[7-9]\d|1[0-8]\d|19[01])\.\d+\.\d+", each) for each in addresses)
