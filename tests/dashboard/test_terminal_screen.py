"""The emulation of the terminal: bytes of programs, and the screen that they should leave."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.dashboard.conftest import Served
from tests.support.browser import Page

# Output of programs on a screen of 10 columns and 4 rows, and its text after that.
SCREENS = {
    "text wraps": ("0123456789ab", "0123456789\nab"),
    "the last column waits": ("0123456789\rX", "X123456789"),
    "no wrap if switched off": ("\x1b[?7l0123456789ab", "012345678b"),
    "lines scroll": ("1\r\n2\r\n3\r\n4\r\n5", "2\n3\n4\n5"),
    "backspace and tab": ("ab\bc\td", "ac      d"),
    "cursor moves": ("\x1b[2;3Hx\x1b[A\x1b[Dy\x1b[4;1Hz", "  y\n  x\n\nz"),
    "moves stop at the edges": ("\x1b[99;99Hx\x1b[99A\x1b[99Dy", "y\n\n\n         x"),
    "erase to the end": ("abc\r\ndef\x1b[1;2H\x1b[J", "a"),
    "erase before": ("abc\x1b[2D\x1b[1K", "  c"),
    "erase all keeps the cursor": ("abc\x1b[2Jd", "   d"),
    "erase characters": ("abcdef\x1b[1;2H\x1b[3X", "a   ef"),
    "insert and delete characters": ("abcdef\x1b[1;2H\x1b[2@\x1b[1;6H\x1b[P", "a  bcef"),
    "insert and delete lines": ("1\r\n2\r\n3\x1b[2;1H\x1b[L\x1b[4;1H\x1b[M", "1\n\n2"),
    "scroll region": ("1\r\n2\r\n3\r\n4\x1b[2;3r\x1b[3;1H\n", "1\n3\n\n4"),
    "reverse line feed": ("1\r\n2\x1b[H\x1bM0", "0\n1\n2"),
    "scroll up and down": ("1\r\n2\r\n3\x1b[S\x1b[2T", "\n\n2\n3"),
    "alternate screen": ("shell\x1b[?1049heditor\x1b[?1049l$", "shell$"),
    "saved cursor": ("ab\x1b7\x1b[4;4Hx\x1b8c", "abc\n\n\n   x"),
    "wide characters": ("日本x", "日本x"),
    "wide characters wrap whole": ("012345678日", "012345678\n日"),
    "combining characters": ("e\u0301x", "e\u0301x"),
    "drawing characters": ("\x1b(0lqk\x1b(Bq", "┌─┐q"),
    "insert mode": ("abc\x1b[1;1H\x1b[4hX\x1b[4l", "Xabc"),
    "repeat": ("ab\x1b[3b", "abbbb"),
    "titles and colours leave no text": ("\x1b]0;title\x07\x1b[1;31;48;5;200mred\x1b[0m", "red"),
    "unknown sequences leave no text": ("\x1b[?9999h\x1b[5 q\x1bPq#0;2~\x1b\\\x1b_x\x1b\\\x1b]52;c;x\x1b\\ok", "ok"),
    "cancelled sequences": ("\x1b[31\x18ok", "ok"),
    "reset": ("abc\x1bcx", "x"),
    "huge numbers are bounded": ("a\x1b[99999999999b\x1b[99999999L\x1bc\x1b[99999999@ok", "ok"),
}


@pytest_asyncio.fixture
async def module(page: Page, served: Served) -> AsyncIterator[Page]:
    await page.evaluate(f"import('/static/{served.dashboard.pages.version}/vt.js').then((vt) => {{ window.vt = vt; }})")
    yield page


async def test_screens(module: Page) -> None:
    shown = await module.evaluate(f"""(() => {{
      const answers = {{}};
      for (const [name, [output]] of Object.entries({json.dumps(SCREENS)})) {{
        const screen = new vt.Screen(10, 4, () => {{}});
        screen.write(output);
        answers[name] = screen.text();
      }}
      return answers;
    }})()""")
    assert shown == {name: text for name, (_, text) in SCREENS.items()}


async def test_output_may_be_cut_anywhere(module: Page) -> None:
    same = await module.evaluate(f"""Object.values({json.dumps(SCREENS)}).every(([output]) => {{
      const [whole, pieces] = [0, 0].map(() => new vt.Screen(10, 4, () => {{}}));
      whole.write(output);
      for (const each of output) pieces.write(each);
      return whole.text() === pieces.text();
    }})""")
    assert same is True


async def test_styles_titles_and_lines_that_scrolled_away_are_kept(module: Page) -> None:
    found: dict[str, Any] = await module.evaluate("""(() => {
      const screen = new vt.Screen(10, 2, () => {});
      screen.write("\\x1b[1;4;31;44mA\\x1b[38;2;1;2;3mB\\x1b[39;49;22;24mC\\x1b[38;5;196mD\\x1b[0m\\x1b]2;ti\\x01tle\\x07\\r\\n2\\r\\n3");
      const first = screen.scrollback[0].cells.slice(0, 4).map((cell) => cell.style);
      return {first, title: screen.title, kept: screen.scrollback.length};
    })()""")
    a, b, c, d = found["first"]
    assert (a["fg"], a["bg"], a["bold"], a["underline"]) == ("1", "4", True, True)
    assert b["fg"] == "#010203"
    assert (c["fg"], c["bg"], c["bold"], c["underline"]) == ("", "", False, False)
    assert d["fg"] == "#ff0000"
    assert (found["title"], found["kept"]) == ("title", 1)


async def test_programs_are_answered_with_nothing_that_they_chose(module: Page) -> None:
    answers = await module.evaluate("""(() => {
      const answers = [];
      const screen = new vt.Screen(10, 4, (text) => answers.push(text));
      screen.write("ab\\x1b[6n\\x1b[5n\\x1b[c\\x1b[>c\\x1b]0;evil\\x07\\x1b[21t\\x1b]10;?\\x07\\x1bP+q\\x1b\\\\\\x05");
      return answers;
    })()""")
    assert answers == ["\x1b[1;3R", "\x1b[0n", "\x1b[?1;2c", "\x1b[>0;0;0c"]


async def test_a_smaller_and_a_larger_screen_keep_the_text(module: Page) -> None:
    shown = await module.evaluate("""(() => {
      const screen = new vt.Screen(10, 4, () => {});
      screen.write("1\\r\\n2\\r\\n3\\r\\n4");
      screen.resize(8, 2);
      const small = [screen.text(), screen.scrollback.length, screen.y];
      screen.resize(12, 5);
      screen.write("5");
      return [...small, screen.text()];
    })()""")
    assert shown == ["3\n4", 2, 1, "3\n45"]


async def test_the_scrollback_is_bounded(module: Page) -> None:
    kept = await module.evaluate("""(() => {
      const screen = new vt.Screen(10, 2, () => {});
      for (let n = 0; n < 5000; n += 1) screen.write(`${n}\\r\\n`);
      return [screen.scrollback.length, screen.dropped + screen.scrollback.length];
    })()""")
    assert kept == [2000, 4999]


# Keys, whether the program wants application keys, and what is sent; None is left to the browser.
KEYS: list[tuple[dict[str, Any], bool, str | None]] = [
    ({"key": "Enter"}, False, "\r"),
    ({"key": "Backspace"}, False, "\x7f"),
    ({"key": "ArrowUp"}, False, "\x1b[A"),
    ({"key": "ArrowUp"}, True, "\x1bOA"),
    ({"key": "ArrowRight", "ctrlKey": True}, True, "\x1b[1;5C"),
    ({"key": "Delete"}, False, "\x1b[3~"),
    ({"key": "F5"}, False, "\x1b[15~"),
    ({"key": "c", "ctrlKey": True}, False, "\x03"),
    ({"key": "[", "ctrlKey": True}, False, "\x1b"),
    ({"key": "b", "altKey": True}, False, "\x1bb"),
    ({"key": "Tab"}, False, "\t"),
    ({"key": "Tab", "shiftKey": True}, False, None),  # leaves the terminal
    ({"key": "a"}, False, None),  # is typed
    ({"key": "c", "metaKey": True}, False, None),
    ({"key": "Shift"}, False, None),
]


async def test_keys(module: Page) -> None:
    plain = {"ctrlKey": False, "altKey": False, "metaKey": False, "shiftKey": False}
    pressed = [({**plain, **event}, application) for event, application, _ in KEYS]
    sent = await module.evaluate(f"{json.dumps(pressed)}.map(([event, on]) => vt.keySequence(event, on))")
    assert sent == [expected for _, _, expected in KEYS]
