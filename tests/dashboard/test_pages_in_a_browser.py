"""The pages in a real browser, as users use them: with a mouse, with a keyboard, on a phone, in the dark."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandpool.api.kinds import POD, SANDBOX_CLAIM
from sandpool.api.labels import CLAIM_FIRST_READY_AT, FIRST_READY_UNKNOWN
from sandpool.api.metrics import CLAIM_CREATIONS
from sandpool.dashboard import inspection
from sandpool.dashboard.history import INTERVAL
from sandpool.dashboard.target import DashboardTarget
from sandpool.engine.transports import REQUESTS
from sandpool.engine.workqueue.metrics import QUEUE_DEPTH
from sandpool.explain.claim import Explanation, Link
from sandpool.node.simulated import Fate
from sandpool.service.inspection import Inspection, Process
from sandpool.service.sandboxes import Sandbox
from sandpool.testing.world import World
from tests.dashboard.conftest import Served, ServedMetrics, serving
from tests.support.browser import Browser, Page
from tests.support.fake_pod_client import FakePodClient

PAGES = ("/", "/pools", "/claims", "/sandboxes", "/nodes", "/controllers")
#: Seconds; a stop that waits for a request takes a minute.
STOPS_WITHIN = 40
HOSTILE = '<img src=x onerror="document.title=`broken`"><script>document.title="broken"</script>'


async def stocked(world: World) -> None:
    """A pool with three warm sandboxes, and a claim that has another."""
    await world.template()
    await world.pool(replicas=3)
    await world.filled(3)
    await world.claim("mine")
    await world.served(1)
    await world.filled(3)


async def sandbox_of(world: World, claim: str = "mine") -> str:
    """The name of the sandbox of a claim."""
    await world.served(1)
    return str((await world.get(SANDBOX_CLAIM, claim))["status"]["sandbox"]["name"])


async def detail_pages(served: Served) -> tuple[str, ...]:
    """The paths of the pages of one object each, with all tabs, in a world that is ``stocked``."""
    box = f"/sandboxes/{served.namespace}/{await sandbox_of(served.world)}"
    tabs = (f"{box}?tab={tab}" for tab in ("run", "terminal", "files", "logs"))
    return f"/pools/{served.namespace}/pool", f"/claims/{served.namespace}/mine", box, *tabs


def dialogs(served: Served) -> tuple[tuple[str, str], ...]:
    """The path of a page, and the button there that opens a dialog."""
    pool, claim = f"/pools/{served.namespace}/pool", f"/claims/{served.namespace}/mine"
    return ("/", "Claim a sandbox"), (pool, "Scale"), (pool, "Roll out"), (claim, "Release")


async def test_the_login_link_opens_the_overview_and_leaves_no_code_behind(page: Page, served: Served) -> None:
    assert await page.evaluate("location.href") == f"{served.url}/"
    await page.see("No pools yet")


async def test_a_used_link_says_what_to_do(browser: Browser, served: Served) -> None:
    link = served.login_url()
    first, second = await browser.page(), await browser.page()
    await first.goto(link)
    await first.see("No pools yet")
    await second.goto(link)
    await second.see("this link was used already")
    await second.see("Get a new one with: sandpool dashboard")


async def test_every_page_shows_what_there_is(page: Page, served: Served) -> None:
    await stocked(served.world)
    for path, text in zip(PAGES, ("Recent claims", "pool", "mine", "held by", "node", "No metrics"), strict=True):
        await page.goto(served.url + path)
        await page.wait(f"document.querySelector('main').innerText.toLowerCase().includes({text.lower()!r})")
        assert await page.evaluate("document.querySelectorAll('.navigation [aria-current=page]').length") == 1
    namespace = served.namespace
    await page.goto(f"{served.url}/pools/{namespace}/pool")
    await page.see("All sandboxes have the current template")
    await page.see("3 of 3 sandboxes are ready")
    await page.goto(f"{served.url}/claims/{namespace}/mine")
    await page.see('Claim "mine" is ready')
    await page.see("once there is an audit log")
    await page.goto(f"{served.url}/claims/{namespace}/nothing")
    await page.see("This claim does not exist")


async def test_changes_appear_without_a_reload(page: Page, served: Served) -> None:
    await page.see("No pools yet")
    await stocked(served.world)
    await page.wait("document.querySelector('td.level-cell')?.innerText.includes('3 / 3')")
    await page.see("mine")
    await served.world.delete(SANDBOX_CLAIM, "mine")
    await page.wait("!document.body.innerText.includes('mine')")


async def test_a_claim_is_made_used_and_released(page: Page, served: Served, directory: Path) -> None:
    await stocked(served.world)
    await page.click("Claim a sandbox")
    await page.fill("dialog input[name=name]", "by-hand")
    await page.click("Claim", "dialog button")
    await page.see("Ctrl+Enter runs the code")
    await page.fill("textarea.code", "word = 'sand'\nprint(word * 2)\n[6 * 7]")
    await page.click("Run")
    await page.see("sandsand")
    await page.see("[42]")
    await page.fill("textarea.code", "word.upper()\n")
    await page.press("Enter", modifiers=2)
    await page.see("'SAND'")
    await page.fill("textarea.code", "1 / 0")
    await page.click("Run")
    await page.see("ZeroDivisionError: division by zero")
    await page.click("Release")
    await page.click("Release", "dialog button")
    await page.see("Released by-hand")
    assert not await served.world.exists(SANDBOX_CLAIM, "by-hand")


async def test_a_terminal_session(page: Page, served: Served, directory: Path) -> None:
    await stocked(served.world)
    screen = "document.querySelector('.terminal-lines').innerText"
    box = await sandbox_of(served.world)
    await page.goto(f"{served.url}/sandboxes/{served.namespace}/{box}?tab=terminal")
    await page.see("Connected")
    await page.type("stty size; printf '\\033[31mred\\033[0m'; echo $((6 * 7))")
    await page.press("Enter", text="\r")
    await page.wait(f"{screen}.includes('red42')")
    size = await page.evaluate(f"{screen}.match(/^(\\d+) (\\d+)\\s*$/m).slice(1).map(Number)")
    assert size[0] == await page.evaluate("document.querySelector('.terminal-lines').childElementCount")
    assert size[1] > 80
    await page.wait("[...document.querySelectorAll('.terminal-lines .fg')].some(each => each.textContent === 'red')")
    await page.type("exit 3")
    await page.press("Enter", text="\r")
    await page.see("The shell ended with exit code 3")
    await page.click("New shell")
    await page.see("Connected")


async def test_time_to_ready_says_what_it_is_and_why_it_is_missing(page: Page, served: Served) -> None:
    await stocked(served.world)
    cell = "document.querySelector('td[data-title=\"Time to ready\"] span')"
    await page.goto(f"{served.url}/claims")
    await page.wait(f"{cell}?.innerText.endsWith('ms')")
    assert "the write of that status is not included" in await page.evaluate(f"{cell}.title")
    unknown = {"annotations": {CLAIM_FIRST_READY_AT: FIRST_READY_UNKNOWN}}
    await served.world.patch(SANDBOX_CLAIM, "mine", {"metadata": unknown})
    await page.wait(f"{cell}.innerText === '–'")
    assert "before this controller could measure it" in await page.evaluate(f"{cell}.title")
    await page.goto(f"{served.url}/claims/{served.namespace}/mine")
    await page.see("– it was Ready before this controller could measure it")


async def test_files_are_shown_uploaded_and_downloaded(page: Page, served: Served, directory: Path) -> None:
    await stocked(served.world)
    (directory / "notes.txt").write_text("a line of text\n")
    (directory / HOSTILE.replace("/", "")).write_text("")
    (directory / "deep").mkdir()
    box = await sandbox_of(served.world)
    await page.goto(f"{served.url}/sandboxes/{served.namespace}/{box}?tab=files")
    await page.see("<img src=x")
    await page.wait(
        "[...document.querySelectorAll('.entry')].map(each => each.innerText.split('\\n')[0])[0] === 'deep'"
    )
    await page.evaluate(
        "[...document.querySelectorAll('.entry')].find(each => each.innerText.startsWith('notes')).click()"
    )
    await page.see("a line of text")
    await page.evaluate("document.querySelector('.breadcrumbs button:nth-last-of-type(2)').click()")
    await page.wait("document.querySelector('.files input[type=file]')")
    await page.evaluate("""(() => {
      const chosen = new DataTransfer();
      chosen.items.add(new File(["from the browser"], "new file.txt"));
      const input = document.querySelector(".files input[type=file]");
      input.files = chosen.files;
      input.dispatchEvent(new Event("change"));
    })()""")
    await page.see("Uploaded new file.txt")
    assert (directory / "new file.txt").read_text() == "from the browser"
    assert await page.evaluate("document.title") != "broken"


async def test_log_of_a_silent_process_says_so_until_it_prints(page: Page, served: Served, pods: FakePodClient) -> None:
    await stocked(served.world)
    pods.following = asyncio.Queue()
    box = await sandbox_of(served.world)
    await page.goto(f"{served.url}/sandboxes/{served.namespace}/{box}?tab=logs")
    await page.see("The main process has printed nothing yet")
    assert await page.evaluate("document.querySelector('.log').offsetParent") is None  # no empty box
    pods.following.put_nowait(b"\x1b[32mready\x1b[0m to serve\r\n")
    await page.wait("document.querySelector('.log').innerText.includes('ready to serve')")
    assert "printed nothing" not in await page.evaluate("document.body.innerText")
    pods.following.put_nowait(b"a second line\n")
    await page.see("a second line")
    async with asyncio.timeout(STOPS_WITHIN):
        await served.dashboard.stop()  # although the log is still followed
    page.problems.clear()


async def test_nothing_of_objects_and_sandboxes_becomes_markup(page: Page, served: Served, directory: Path) -> None:
    world = served.world
    await world.template(image=HOSTILE.replace(" ", "_"))
    await world.pool(replicas=1)
    await world.filled(1)
    await world.claim("mine")
    box = await sandbox_of(world)
    await page.goto(f"{served.url}/pools/{served.namespace}/pool")
    await page.see("<script>")
    await page.goto(f"{served.url}/sandboxes/{served.namespace}/{box}?tab=run")
    await page.fill("textarea.code", f"print({HOSTILE!r})\n{HOSTILE!r}")
    await page.click("Run")
    await page.wait("document.querySelector('.stdout')?.innerText.includes('<script>')")
    await page.goto(f"{served.url}/claims?filter=%3Cimg%20src%3Dx%3E")
    await page.see('No claim has "<img src=x>"')
    assert await page.evaluate("document.title") != "broken"
    assert await page.evaluate("document.querySelectorAll('main img, main script').length") == 0


async def test_the_policy_of_the_page_refuses_what_could_be_injected(page: Page) -> None:
    for attempt in (
        "document.body.innerHTML = '<b>x</b>'",
        "document.createElement('script').src = '/static/app.js'",
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
    ):
        refused = await page.evaluate(
            f"(() => {{ try {{ {attempt}; return false; }} catch (error) {{ return true; }} }})()"
        )
        assert refused, attempt
    page.problems.clear()  # the browser reports each of them


# What is wider than the screen, but for what scrolls by itself.
WIDE = (
    "[...document.querySelectorAll('main *')].filter("
    "each => each.getBoundingClientRect().right > innerWidth + 1 "
    "&& !each.closest('.tabs, pre, .terminal-view, .table-frame, .visually-hidden'))"
    ".map(each => each.className || each.tagName)"
)


@pytest.mark.parametrize("width", [320, 390])
async def test_every_page_fits_a_phone(page: Page, served: Served, width: int) -> None:
    await stocked(served.world)
    await page.size(width, 700, phone=True)
    for path in (*PAGES, *await detail_pages(served)):
        await page.goto(served.url + path)
        await page.wait("document.querySelector('.page-header')")
        wide = await page.evaluate(WIDE)
        assert wide == [], path
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        covered = "document.querySelector('.navigation').getBoundingClientRect().bottom"
        assert await page.evaluate(covered) == await page.evaluate("innerHeight"), path


# Contrast of text and what is behind it, as WCAG 2 defines it.
CONTRAST = """(() => {
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if ((colour[3] ?? 1) > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    if (element.closest("svg, noscript, .skip, .visually-hidden") || element.offsetParent === null) continue;
    const [one, two] = [luminance(parse(getComputedStyle(element).color)), luminance(behind(element))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5 && !element.closest(":disabled")) found.push(`${element.className}: ${ratio.toFixed(2)}`);
  }
  return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_is_readable_in_light_and_dark(page: Page, served: Served, scheme: str) -> None:
    await stocked(served.world)
    objects = await detail_pages(served)
    await served.world.claim("stuck", warmPoolRef={"name": "missing"})
    await page.scheme(scheme)
    for path in (*PAGES, *objects):
        await page.goto(served.url + path)
        await page.wait("document.querySelector('.page-header')")
        assert await page.evaluate(CONTRAST) == [], path
    for path, opens in dialogs(served):
        await page.goto(served.url + path)
        await page.click(opens)
        await page.wait("document.querySelector('dialog[open]')")
        assert await page.evaluate(CONTRAST) == [], opens
    background = await page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert (background < 60) == (scheme == "dark")


async def test_the_scheme_can_be_chosen_and_is_kept(page: Page, served: Served) -> None:
    await page.click("Switch between light and dark")
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await page.goto(f"{served.url}/pools")
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_everything_is_reached_with_the_keyboard(page: Page, served: Served) -> None:
    await stocked(served.world)
    await page.see("mine")
    await page.press("Tab")
    assert await page.evaluate("document.activeElement.innerText") == "Skip to content"
    await page.press("3", text="3")
    await page.wait("location.pathname === '/claims'")
    await page.press("/", text="/")
    assert await page.evaluate("document.activeElement.type") == "search"
    await page.type("min")
    await page.press("Tab")
    await page.wait("document.activeElement.innerText === 'mine'")
    await page.press("Enter", text="\r")
    await page.see('Claim "mine" is ready')
    await page.evaluate("document.activeElement.blur()")
    await page.press("c", text="c")
    await page.wait(
        "document.querySelector('dialog[open] select') === document.activeElement || "
        "document.querySelector('dialog[open]').contains(document.activeElement)"
    )
    await page.press("Escape")
    await page.wait("!document.querySelector('dialog')")
    unnamed = await page.evaluate(
        "[...document.querySelectorAll('button, a, input, select, textarea')].filter(each => "
        "!(each.innerText || each.getAttribute('aria-label') || each.labels?.length)).map(each => each.outerHTML)"
    )
    assert unnamed == []


async def test_a_pool_is_scaled_rolled_out_and_the_rollout_undone(page: Page, served: Served) -> None:
    world = served.world
    await stocked(world)
    await page.goto(f"{served.url}/pools/{served.namespace}/pool")
    await page.click("Scale")
    await page.fill("dialog input[name=replicas]", "4")
    await page.click("Scale", "dialog button")
    await page.see("has 4 warm sandboxes from now on")
    await world.filled(4)
    await page.click("Roll out")
    await page.fill("dialog input[name=image]", "example.com/image:2")
    await page.select("dialog select[name=strategy]", "Recreate")
    await page.click("Roll out", "dialog button")
    await page.wait("document.querySelector('.facts').innerText.includes('example.com/image:2')")
    await page.see("All sandboxes have the current template")
    await page.click("Undo the last change")
    await page.see("with the image example.com/image:1")
    await page.click("Undo", "dialog button")
    await page.wait("document.querySelector('.facts').innerText.includes('example.com/image:1')")


async def test_rollout_form_starts_from_the_strategy_of_the_pool_and_says_what_it_does(
    page: Page, served: Served
) -> None:
    await served.world.template()
    for name in ("pool", "second", "third"):
        await served.world.pool(replicas=0, strategy="OnReplenish", name=name)
    strategy = "document.querySelector('dialog select[name=strategy]')"
    await page.goto(f"{served.url}/pools/{served.namespace}/pool")
    await page.click("Roll out")
    assert await page.wait(f"{strategy}.value") == "OnReplenish"
    await page.see("Idle sandboxes with the former template stay and are handed out to claims first")
    await page.see("Pools second and third have the same template, so this changes them too")
    await page.select("dialog select[name=strategy]", "Recreate")
    await page.see("for a while none is ready")
    await page.fill("dialog input[name=image]", "example.com/image:2")
    await page.click("Roll out", "dialog button")
    await page.click("Undo the last change")
    await page.see("The undo does not change how the pool follows its template. All idle sandboxes are deleted")
    await page.see("Pools second and third have the same template")


async def test_pool_that_cannot_start_needs_attention_long_before_its_grace_period_ends(
    page: Page, served: Served
) -> None:
    world = served.world
    world.node.fate = lambda pod: Fate.HANGING
    await world.template()
    await world.pool(1, filled=False)
    (member,) = await world.until(world.members)
    name = member["metadata"]["name"]
    await world.until(lambda: world.exists(POD, name))
    waiting = {"reason": "ImagePullBackOff", "message": "no such image: example.com/image:1"}
    container = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}
    await world.patch(POD, name, {"status": status}, "status")
    await page.see("Needs attention")
    await page.wait(
        "[...document.querySelectorAll('tr')].some(each => each.innerText.includes('Does not start') "
        "&& each.innerText.includes('ImagePullBackOff') && each.innerText.includes('no such image'))"
    )


def sampled(served: Served, count: int) -> None:
    """Let the board, as it is now, be that of the last samples."""
    now = served.dashboard.history.sample()
    past = [{**now, "at": now["at"] - INTERVAL * back} for back in range(count - 1, -1, -1)]
    served.dashboard.history.samples.clear()
    served.dashboard.history.samples.extend(past)


async def counted(served: Served, metrics: ServedMetrics) -> None:
    """Let the board have three samples of controllers that make 38 writes for 5 claims meanwhile."""
    requests, claims = metrics.registry.counter(REQUESTS), metrics.registry.counter(CLAIM_CREATIONS)
    waiting: dict[tuple[str, ...], float] = {("a", "sandboxclaim", "0"): 1200.0, ("b", "sandboxwarmpool", "0"): 34.0}
    metrics.registry.collect(QUEUE_DEPTH, lambda: waiting)
    samples = []
    for step in range(3):
        counts = {("200", "PATCH"): 15, ("409", "PATCH"): step, ("409", "POST"): 4 - step, ("429", "GET"): 7}
        for (code, method), count in counts.items():
            requests.add(code, method, "host", amount=count)
        claims.add("ns", "t", "warm", "p", "ready", "x", amount=step + 1)
        await served.dashboard.metrics.refresh()
        samples.append(served.dashboard.history.sample())
    for back, sample in enumerate(reversed(samples)):
        sample["at"] -= INTERVAL * back
    served.dashboard.history.samples.clear()
    served.dashboard.history.samples.extend(samples)


async def test_controllers_page_shows_writes_with_their_budget_conflicts_and_queues(
    browser: Browser, world: World, target: DashboardTarget, metrics: ServedMetrics
) -> None:
    async with serving(world, replace(target, metrics_url=metrics.url)) as served:
        page = await browser.page()
        await page.goto(served.login_url())
        await page.see("No pools yet")
        await counted(served, metrics)
        await page.goto(f"{served.url}/controllers")
        await page.see("Work queues")
        tiles = await page.evaluate("[...document.querySelectorAll('.tile')].map(each => each.innerText.split('\\n'))")
        shown = {title.lower(): (value, note) for title, value, note in tiles}
        assert shown["writes"][0] == "57"
        assert shown["writes per claim"] == ("7.6", "budget 9 with the replacement; filling a pool adds to it")
        assert shown["conflicts"] == ("3", "updates that another writer was ahead of")
        assert shown["throttled"][0] == "21"
        assert shown["waiting keys"][0] == "1,234"
        rows = await page.evaluate(
            "[...document.querySelectorAll('tbody tr')].map(each => each.innerText.split('\\t'))"
        )
        assert rows == [["sandboxclaim", "1,200"], ["sandboxwarmpool", "34"]]
        plots = "[...document.querySelectorAll('.figure .plot')]"
        assert await page.evaluate(f"{plots}.length") == 3
        for index, told in enumerate(("3.8 at ", "0.2 at ", "1234 at ")):
            await page.evaluate(f"{plots}[{index}].focus()")
            await page.press("Home")
            await page.see(told)
        for scheme in ("light", "dark"):
            await page.scheme(scheme)
            assert await page.evaluate(CONTRAST) == [], scheme
        for width in (320, 390):
            await page.size(width, 700, phone=True)
            assert await page.evaluate(WIDE) == [], width
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.problems == []


async def test_states_are_words_with_the_reason_of_the_api_as_title(page: Page, served: Served) -> None:
    await stocked(served.world)
    await served.world.claim("stuck", warmPoolRef={"name": "missing"})
    await page.goto(f"{served.url}/claims")
    badge = "[...document.querySelectorAll('.badge')].find(each => each.innerText === 'Pool missing')"
    await page.wait(badge)
    assert (await page.evaluate(f"{badge}.title")).startswith("WarmPoolNotFound: ")


async def test_charts_have_a_scale_and_tell_the_value_of_a_time(page: Page, served: Served) -> None:
    await stocked(served.world)
    await page.wait("document.querySelector('td.level-cell')?.innerText.includes('3 / 3')")
    sampled(served, 24)
    await page.goto(f"{served.url}/pools/{served.namespace}/pool")
    plot = "document.querySelector('.figure .plot')"
    await page.wait(plot)
    assert await page.evaluate(f"{plot}.querySelector('.plot-scale').innerText.split('\\n')") == ["3", "0"]
    assert await page.evaluate("document.querySelector('.plot-value')") is None
    await page.evaluate(f"{plot}.focus()")
    await page.see("3 at ")
    last = await page.evaluate(f"{plot}.getAttribute('aria-valuetext')")
    await page.press("ArrowLeft")
    await page.wait(f"{plot}.getAttribute('aria-valuetext') !== {last!r}")
    await page.evaluate(f"{plot}.blur()")
    await page.wait("!document.querySelector('.plot-value')")
    box = await page.evaluate(
        f"(() => {{ const box = {plot}.getBoundingClientRect(); return [box.x + 60, box.y + 20]; }})()"
    )
    await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    await page.wait("document.querySelector('.plot-value')?.innerText.startsWith('3 at ')")


async def test_charts_draw_no_line_for_what_is_not_known(page: Page, served: Served) -> None:
    await served.world.template()
    served.world.node.fate = lambda pod: Fate.HANGING
    await served.world.pool(2, filled=False)
    await served.world.until(served.world.members)
    sampled(served, 24)
    await page.goto(f"{served.url}/pools/{served.namespace}/pool")
    figures = "[...document.querySelectorAll('.figure')]"
    await page.see("The line begins with the first claim.")
    starts = f"{figures}.find(each => each.innerText.startsWith('Warm starts'))"
    assert await page.evaluate(f"{starts}.querySelectorAll('path').length") == 0
    current = f"{figures}.find(each => each.innerText.startsWith('Ready, current template'))"
    await page.wait(f"{current}.innerText.includes('0 of 2')")
    await page.goto(f"{served.url}/pools")
    await page.wait("[...document.querySelectorAll('th')].some(each => each.innerText === 'Last 2 minutes')")


async def test_wide_screens_are_used(page: Page, served: Served) -> None:
    await stocked(served.world)
    await page.size(1680, 1000)
    await page.goto(served.url)
    await page.see("Recent claims")
    tops = "[...document.querySelector('.columns').children].map(each => each.getBoundingClientRect().top)"
    first, second = await page.evaluate(tops)
    assert first == second
    await page.size(1280, 1000)
    first, second = await page.evaluate(tops)
    assert first < second


async def test_tab_bar_of_a_phone_shows_the_current_tab(page: Page, served: Served) -> None:
    await stocked(served.world)
    box = await sandbox_of(served.world)
    await page.size(320, 700, phone=True)
    await page.goto(f"{served.url}/sandboxes/{served.namespace}/{box}?tab=logs")
    await page.wait("document.querySelector('.tabs [aria-current]').innerText === 'Logs'")
    await page.wait("document.querySelector('.tabs [aria-current]').getBoundingClientRect().right <= innerWidth")


async def test_terminal_of_a_phone_has_its_keys_and_its_status_above_the_bar(
    page: Page, served: Served, directory: Path
) -> None:
    await stocked(served.world)
    box = await sandbox_of(served.world)
    await page.size(390, 844, phone=True)
    await page.goto(f"{served.url}/sandboxes/{served.namespace}/{box}?tab=terminal")
    await page.see("Connected")
    bar = await page.evaluate("document.querySelector('.navigation').getBoundingClientRect().top")
    for part in (".terminal-keys", ".terminal-footer"):
        shown = await page.evaluate(
            f"(() => {{ const box = document.querySelector('{part}').getBoundingClientRect(); "
            "return [box.height, box.bottom]; })()"
        )
        assert shown[0] > 0, part
        assert shown[1] <= bar, part
    await page.type("cat")
    await page.press("Enter", text="\r")
    await page.click("Ctrl")
    await page.wait("document.querySelector('.terminal-keys [aria-pressed=true]')")
    await page.type("c")  # ends cat
    await page.wait("!document.querySelector('.terminal-keys [aria-pressed=true]')")
    await page.wait("/\\^C\\s*\\n.*[#$]/.test(document.querySelector('.terminal-lines').innerText)")
    await page.type("echo $((6 * 7))")
    await page.press("Enter", text="\r")
    await page.wait("/^42\\s*$/m.test(document.querySelector('.terminal-lines').innerText)")
    await page.click("↑")
    await page.press("Enter", text="\r")
    await page.wait("document.querySelector('.terminal-lines').innerText.match(/^42\\s*$/mg)?.length === 2")


async def test_dialog_of_a_phone_on_its_side_has_its_buttons_on_the_screen(page: Page, served: Served) -> None:
    await stocked(served.world)
    await page.size(700, 320, phone=True)
    await page.click("Claim a sandbox")
    bottom = "document.querySelector('dialog[open] .dialog-footer button[type=submit]').getBoundingClientRect().bottom"
    assert 0 < await page.evaluate(bottom) <= 320


async def test_processes_fill_a_phone_and_own_ports_have_names(
    page: Page, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def processes(self: Inspection, sandbox: Sandbox) -> tuple[Process, ...]:
        return (Process(7, 1, "S", 0.1, 4096, 1, "python3 -m http.server --directory /work/site 3000"),)

    async def ports(self: Inspection, sandbox: Sandbox) -> tuple[int, ...]:
        return (3000, 8879, 8888)

    monkeypatch.setattr(Inspection, "processes", processes)
    monkeypatch.setattr(Inspection, "ports", ports)
    await stocked(served.world)
    box = await sandbox_of(served.world)
    await page.size(390, 844, phone=True)
    await page.goto(f"{served.url}/sandboxes/{served.namespace}/{box}")
    await page.see("http.server --directory /work/site 3000")
    cell, row = await page.evaluate(
        "['td.wide', 'tr'].map(each => document.querySelector('.rows').parentElement.parentElement && "
        "document.querySelector('.command-line').closest(each).getBoundingClientRect().width)"
    )
    assert cell == row
    shown = await page.evaluate("[...document.querySelectorAll('.ports li')].map(each => each.innerText.split('\\n'))")
    assert [each[0] for each in shown] == ["3000", "8879", "8888"]
    assert [each[1] for each in shown] == ["Open", "sandboxd: variables of claims", "sandboxd: commands and files"]


async def test_claim_form_begins_with_the_pool_of_the_home(page: Page, served: Served) -> None:
    await stocked(served.world)
    await served.world.pool(replicas=1, name="python", filled=False)
    await page.wait("[...document.querySelectorAll('a.name')].some(each => each.innerText === 'python')")
    await page.click("Claim a sandbox")
    assert await page.wait("document.querySelector('dialog select[name=pool]').value") == f"{served.namespace}/python"


async def test_steps_of_an_explanation_are_in_the_order_of_their_dates(
    page: Page, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explained(*args: object) -> Explanation:
        later = datetime(2026, 11, 3, 9, 30, tzinfo=UTC)
        steps = (Link(None, "it waits"), Link(later, "second"), Link(later - timedelta(days=1), "first"))
        return Explanation("It waits.", steps, "", ())

    monkeypatch.setattr(inspection, "explain_object", explained)
    await stocked(served.world)
    await page.goto(f"{served.url}/claims/{served.namespace}/mine")
    await page.click("How it came to this: 3 steps")
    steps = await page.evaluate("[...document.querySelectorAll('.chain li')].map(each => each.innerText.split('\\n'))")
    assert [each[-1] for each in steps] == ["first", "second", "it waits"]
    assert steps[0][0] != steps[1][0]
    assert "Nov" in steps[0][0]


async def test_code_is_not_cut_within_a_line(page: Page, served: Served, directory: Path) -> None:
    await stocked(served.world)
    box = await sandbox_of(served.world)
    await page.goto(f"{served.url}/sandboxes/{served.namespace}/{box}?tab=run")
    await page.fill("textarea.code", "\n".join(f"line = {number}" for number in range(20)))
    await page.click("Run")
    await page.see("It printed nothing.")
    lines = await page.evaluate(
        "(() => { const asked = document.querySelector('pre.asked'); "
        "return asked.clientHeight / parseFloat(getComputedStyle(asked).lineHeight); })()"
    )
    assert abs(lines - round(lines)) < 0.05


async def test_detail_pages_and_dialogs_have_a_name_for_every_control(page: Page, served: Served) -> None:
    await stocked(served.world)
    unnamed = (
        "[...document.querySelectorAll('button, a, input, select, textarea, [tabindex=\"0\"]')].filter(each => "
        "!(each.innerText || each.getAttribute('aria-label') || each.labels?.length)).map(each => each.outerHTML)"
    )
    for path in await detail_pages(served):
        await page.goto(served.url + path)
        await page.wait("document.querySelector('.page-header')")
        assert await page.evaluate(unnamed) == [], path
    for path, opens in dialogs(served):
        await page.goto(served.url + path)
        await page.click(opens)
        await page.wait("document.querySelector('dialog[open]')?.contains(document.activeElement)")
        assert await page.evaluate(unnamed) == [], opens
        await page.press("Escape")
        await page.wait("!document.querySelector('dialog')")


async def test_sandbox_is_suspended_and_resumed(page: Page, served: Served) -> None:
    await stocked(served.world)
    box = await sandbox_of(served.world)
    await page.goto(f"{served.url}/sandboxes/{served.namespace}/{box}")
    await page.click("Suspend")
    await page.wait("document.querySelector('.page-header .badge').innerText === 'Suspended'")
    await page.click("Logs")
    await page.see("The sandbox is suspended. Resume it first.")
    await page.click("Resume")
    await page.wait("document.querySelector('.page-header .badge').innerText === 'Ready'")


async def test_a_read_only_dashboard_offers_no_change(browser: Browser, read_only: Served) -> None:
    await stocked(read_only.world)
    page = await browser.page()
    await page.goto(read_only.login_url())
    await page.see("read-only")
    await page.goto(f"{read_only.url}/pools/{read_only.namespace}/pool")
    await page.see("All sandboxes have")
    enabled = "[...document.querySelectorAll('main .page-header button')].filter(each => !each.disabled).length"
    assert await page.evaluate(enabled) == 0


async def test_a_lost_connection_is_said(page: Page, served: Served) -> None:
    await page.see("No pools yet")
    await served.dashboard.stop()
    await page.see("The connection to the dashboard is lost")
    page.problems.clear()
