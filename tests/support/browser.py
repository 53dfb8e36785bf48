"""Chromium for tests, driven over its DevTools protocol: small enough to need no package and no driver of its own."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
WITHIN: Final = 20.0
_LISTENING: Final = b"DevTools listening on "
#: Of an evaluation in a page that the browser has left.
_LEFT: Final = "Inspected target navigated or closed"
_FLAGS: Final = (
    "--headless=new",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-sandbox",
    "--password-store=basic",
    "--remote-debugging-port=0",
    # Nothing but this machine can be reached, whatever a page asks for.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1, EXCLUDE *.test",
)


def find_chromium() -> str | None:
    """The browser of this machine."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class PageFailed(AssertionError):
    """A script of a test failed in the page, or what it waits for did not happen."""


class Page:
    """One tab. ``problems`` has the errors that the page logged, without failed requests, which tests may want."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.problems: list[str] = []

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        return await self._browser.call(method, self._session, **parameters)

    async def goto(self, url: str) -> None:
        """Load a page, until its scripts have run."""
        loaded = self._browser.event(self._session, "Page.loadEventFired")
        answer = await self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise PageFailed(f"{url}: {answer['errorText']}")
        await asyncio.wait_for(loaded, WITHIN)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, which may be a promise."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if (failure := answer.get("exceptionDetails")) is not None:
            raise PageFailed(failure.get("exception", {}).get("description") or failure["text"])
        return answer["result"].get("value")

    async def wait(self, condition: str) -> Any:
        """Wait until an expression is true, and return its value. It is evaluated after every change of the page."""
        script = f"""new Promise((resolve, reject) => {{
          const check = () => {{
            let value;
            try {{ value = ({condition}); }} catch (error) {{ value = null; }}
            if (value) {{ observer.disconnect(); clearTimeout(alarm); resolve(value); }}
          }};
          const observer = new MutationObserver(check);
          const options = {{childList: true, subtree: true, attributes: true, characterData: true}};
          observer.observe(document, options);
          const alarm = setTimeout(() => {{
            observer.disconnect();
            reject(new Error("not within {WITHIN:g} s; the page shows: " + document.body.innerText.slice(0, 1500)));
          }}, {WITHIN * 1000:g});
          check();
        }})"""
        async with asyncio.timeout(WITHIN + 5):
            while True:
                try:
                    return await self.evaluate(script)
                except PageFailed as error:
                    if _LEFT not in str(error):  # else wait on in the page that comes next
                        raise PageFailed(f"{condition}: {error}") from None

    async def see(self, text: str) -> None:
        """Wait until the page shows a text."""
        await self.wait(f"document.body.innerText.includes({json.dumps(text)})")

    async def click(self, text: str, selector: str = "a, button, summary") -> None:
        """Click on the element with a text, once it is there, as a mouse would."""
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})].findLast(each => each.offsetParent !== null && "
            f"!each.disabled && (each.innerText.trim() || each.getAttribute('aria-label')) === {json.dumps(text)})"
        )
        box = await self.wait(
            f"(() => {{ const found = {found}; if (!found) return null; found.scrollIntoView({{block: 'center'}}); "
            "const box = found.getBoundingClientRect(); "
            "return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, **box, button="left", clickCount=1)

    async def fill(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        await self.wait(f"document.querySelector({json.dumps(selector)})")
        field = f"document.querySelector({json.dumps(selector)})"
        await self.evaluate(f"{field}.focus(), {field}.select()")
        await self.type(text)

    async def select(self, selector: str, value: str) -> None:
        """Choose an option of a list."""
        field = f"document.querySelector({json.dumps(selector)})"
        await self.wait(field)
        await self.evaluate(
            f"{field}.value = {json.dumps(value)}, {field}.dispatchEvent(new Event('change', {{bubbles: true}}))"
        )

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, *, modifiers: int = 0, text: str = "") -> None:
        """Press a key, by its name in ``KeyboardEvent.key``."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27}
        common = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": codes.get(key, 0), "code": key}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def size(self, width: int, height: int, *, scale: float = 1, phone: bool = False) -> None:
        """Give the page the size of a screen."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        await self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    async def scheme(self, scheme: str) -> None:
        """Prefer ``dark`` or ``light``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self) -> bytes:
        """A PNG of what is visible."""
        answer = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])


class Browser:
    """A running browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._events: dict[tuple[str, str], list[asyncio.Future[Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._contexts: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def page(self) -> Page:
        """Open a tab in a profile of its own, without cookies of others."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        self._contexts.append(context)
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.size(1280, 860)
        await page.scheme("light")
        return page

    def event(self, session: str, method: str) -> asyncio.Future[Any]:
        """The next event of a page."""
        future = asyncio.get_running_loop().create_future()
        self._events.setdefault((session, method), []).append(future)
        return future

    async def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        self._number += 1
        future = self._answers[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_json({**message, **({"sessionId": session} if session else {})})
        return await asyncio.wait_for(future, WITHIN + 5)

    async def close(self) -> None:
        for context in self._contexts:
            await self.call("Target.disposeBrowserContext", browserContextId=context)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        async for message in self._socket:
            content = json.loads(message.data)
            if (number := content.get("id")) is not None:
                future = self._answers.pop(number)
                if not future.done():
                    error = content.get("error")
                    future.set_exception(PageFailed(str(error))) if error else future.set_result(content["result"])
                continue
            session, method = content.get("sessionId", ""), content["method"]
            self._note(session, method, content["params"])
            for waiting in self._events.pop((session, method), []):
                if not waiting.done():
                    waiting.set_result(content["params"])

    def _note(self, session: str, method: str, params: Any) -> None:
        page = self._pages.get(session)
        if page is None:
            return
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            page.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded":
            entry = params["entry"]
            if entry["level"] == "error" and entry["source"] != "network":
                page.problems.append(entry["text"])


@contextmanager
def chromium(directory: Path) -> Iterator[str]:
    """Run a browser with a fresh profile for the length of the block; yields the address to connect to."""
    program = find_chromium()
    assert program is not None
    with subprocess.Popen(
        [program, *_FLAGS, f"--user-data-dir={directory / 'profile'}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "HOME": str(directory)},
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            said = b""
            for line in process.stderr:
                said += line
                if line.startswith(_LISTENING):
                    break
            else:
                raise AssertionError(f"chromium ended before it listened: {said.decode()}")
            draining = threading.Thread(target=process.stderr.read, daemon=True)
            draining.start()
            yield line.removeprefix(_LISTENING).decode().strip()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            draining.join()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Browser]:
    """Drive the browser at an address for the length of the block. Its tabs are closed at the end."""
    async with aiohttp.ClientSession() as client, client.ws_connect(address, max_msg_size=0) as socket:
        browser = Browser(socket)
        try:
            yield browser
        finally:
            await browser.close()
