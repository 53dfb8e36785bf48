"""The HTML page shows the measured numbers and is self-contained."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from sandpool.bench.html_report import afterwards, distribution, page, requests, timeline, way


def run(**changes: Any) -> dict[str, Any]:
    moments = {"due": 0.0, "sent": 0.001, "answered": 0.004, "seen": 0.005, "assigned": 0.010, "ready": 0.020}
    fields: dict[str, Any] = {
        "scenario": "burst",
        "home": "here & there",
        "pool": 3,
        "claims": 2,
        "served": 2,
        "latency_ms": {"p50": 20.0, "p90": 1234.5, "p99": 1234.5, "p100": 1234.5},
        "claims_per_second": 7.0,
        "warm": 2,
        "cold": 0,
        "conflicts": {"controllers": 4},
        "reconciles": {"sandboxclaim": 5},
        "cpu_seconds": {"controller": 0.5},
        "memory_bytes": {"controller": 64_000_000},
        "starved_seconds": {"controller": 1.25},
        "refilled_after_seconds": 2.25,
        "rollout": None,
        "left_out": [],
        "levels": [[-0.1, 3], [0.5, 2], [1.5, 3]],
        "requests": [
            {"writer": "controllers", "what": "patch sandboxes", "count": 3},
            {"writer": "client", "what": "create sandboxclaims", "count": 2},
        ],
        "samples": [[0.0, 0.02], [0.0, 1.2345]],
        "waterfalls": {"p50": {"name": "claim-0", **moments}},
    }
    return fields | changes


def document(*runs: dict[str, Any]) -> dict[str, Any]:
    machine = {"cores": 2, "python": "3.11", "system": "Linux"}
    return {"command": "sandpool bench claims 'a<b'", "machine": machine, "runs": list(runs)}


class Reader(HTMLParser):
    """Parses a page into its visible cells and the URLs that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.fetches: list[str] = []
        self.count: dict[str, int] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.fetches += [f"{key}={value}" for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and "style" not in self.open:
            self.texts.append(data.strip())


def test_names_are_escaped_once() -> None:
    assert "here &amp; there" in page(document(run()))
    assert "&amp;amp;" not in page(document(run()))


def test_page_shows_the_measured_numbers() -> None:
    seen = Reader(page(document(run())))
    assert seen.open == [], "what is opened is closed"
    cells = ["burst", "here & there", "2 of 2", "20.0", "1,234.5", "1,234.5", "1,234.5", "7", "2/0", "after 2.2 s"]
    start = seen.texts.index("pool full") + 1
    assert seen.texts[start : start + len(cells)] == cells
    assert "sandpool bench claims 'a<b'" in seen.texts
    for label, value in (
        ("conflicts of controllers", "4"),
        ("reconciles of sandboxclaim", "2.50"),
        ("CPU of controller", "250.00 ms"),
        ("memory of controller", "64 MB"),
        ("controller ready to run without a processor", "1.2 s"),
        ("client: create sandboxclaims", "1.00"),
        ("controllers: patch sandboxes", "1.50"),
        ("has a sandbox until ready", "10.0 ms"),
    ):
        assert value in seen.texts[seen.texts.index(label) + 1 : seen.texts.index(label) + 3], label
    assert seen.count["svg"] == 4
    assert seen.count["polyline"] == 3


def test_page_is_self_contained_and_follows_the_color_scheme() -> None:
    text = page(document(run()))
    assert Reader(text).fetches == []
    assert not re.search(r"https?://|@import|url\(|<script", text)
    assert "prefers-color-scheme: dark" in text


def test_runs_of_one_scenario_share_a_latency_plot() -> None:
    seen = Reader(page(document(run(), run(home="elsewhere"), run(scenario="single"))))
    assert seen.count["h2"] == 2
    assert seen.count["svg"] == 2 + 3 * 3


def test_unknown_figures_and_unserved_claims_are_stated() -> None:
    unserved = run(
        served=0,
        latency_ms=dict.fromkeys(("p50", "p90", "p99", "p100")),
        samples=[[0.0, None]],
        requests=[],
        waterfalls={},
        left_out=["requests are not known"],
    )
    seen = Reader(page(document(unserved)))
    assert {"No claim was served.", "requests are not known"} <= set(seen.texts)
    assert seen.texts.count("-") == 4


def test_rollout_is_described() -> None:
    text = page(document(run(rollout={"changed": 10.0, "seconds": 3.5, "stale": 0})))
    assert "The template changed after 10.0 s; the pool was full of the new one 3.5 s later" in text


def test_distribution_counts_unserved_claims() -> None:
    points = distribution(run(samples=[[1.0, 1.5], [0.0, 0.25], [0.0, None], [0.0, 1.0]]))
    assert points == [(250.0, 25.0), (500.0, 50.0), (1000.0, 75.0)]


def test_timeline_shows_ready_members_and_waiting_claims() -> None:
    pool, waiting = timeline(run(samples=[[0.0, 2.0], [1.0, None]]))
    assert pool.points == [(0.0, 3), (0.5, 2), (1.5, 3), (2.0, 3)]
    assert waiting.points == [(0.0, 0.0), (0.0, 1), (1.0, 2), (2.0, 1)]


def test_timeline_of_a_fill_has_no_waiting_claims() -> None:
    assert [line.label for line in timeline(run(scenario="fill"))] == ["ready in the pool"]


def test_requests_are_ordered_by_writer() -> None:
    assert requests(run()) == [("client: create sandboxclaims", 1.0, 0), ("controllers: patch sandboxes", 1.5, 1)]


def test_missing_step_is_left_out_of_the_waterfall() -> None:
    moments = {"due": 1.0, "sent": 1.001, "answered": None, "seen": 1.005, "assigned": 1.01, "ready": 1.02}
    names = [name for name, *_ in way(moments)]
    assert "create call" not in names
    name, begin, end, _ = way(moments)[-1]
    assert (name, round(begin, 6), round(end, 6)) == ("has a sandbox until ready", 10.0, 20.0)


def test_server_calls_are_drawn_below_the_client_steps() -> None:
    moments = {"due": 1.0, "sent": 1.0, "answered": 1.004, "seen": None, "assigned": None, "ready": None}
    calls = [
        {"what": "claim created", "writer": "client", "begin": 1.001, "end": 1.003, "code": 201},
        {"what": "sandbox adopted", "writer": "controllers", "begin": 1.006, "end": 1.009, "code": 409},
    ]
    *_, first, second = way({**moments, "server": calls})
    assert (first[0], round(first[1], 6), round(first[2], 6)) == ("client: claim created", 1.0, 3.0)
    assert (second[0], second[3]) == ("controllers: sandbox adopted (409)", 2)


def test_calls_outside_the_wait_are_listed_and_not_drawn() -> None:
    moments = {"due": 1.0, "sent": 1.0, "answered": 1.1, "seen": 1.1, "assigned": 1.2, "ready": 1.2, "name": "claim-0"}
    calls = [
        {"what": "claim status written", "writer": "controllers", "begin": 1.15, "end": 1.25, "code": 200},
        {"what": "event", "writer": "controllers", "begin": 31.0, "end": 31.5, "code": 201},
    ]
    moments = {**moments, "server": calls}
    assert max(end for _, _, end, _ in way(moments)) == pytest.approx(250)
    assert afterwards(moments) == "Afterwards: event (controllers) from 30.00 to 30.50 s."
    assert afterwards(moments) in Reader(page(document(run(waterfalls={"p50": moments})))).texts


def test_judged_figures_come_first() -> None:
    figure = {"name": "p99 <", "shown": "9 s", "target": "<= 2 s", "verdict": "MISSED", "details": {"p50": "1 s"}}
    seen = Reader(page({**document(run()), "figures": [figure], "failures": ["a sandbox was given out twice"]}))
    start = seen.texts.index("p99 <")
    assert seen.texts[start : start + 5] == ["p99 <", "9 s", "<= 2 s", "MISSED", "p50 1 s"]
    assert start < seen.texts.index("a sandbox was given out twice") < seen.texts.index("pool full")


def test_claim_sent_early_has_no_negative_step() -> None:
    moments = {"due": 1.0, "sent": 0.9997, "answered": 1.004, "seen": 1.005, "assigned": 1.01, "ready": 1.02}
    assert way(moments)[0] == ("due until sent", 0.0, 0.0, 0)


def test_page_says_when_where_and_with_which_code_it_was_measured_and_whether_targets_were_reached() -> None:
    told = {**document(run(targets="p99 100 ms", verdict="MISSED", nodes="simulated")), **PROVENANCE}
    text = page(told)
    for expected in ("2026-01-02T03:04:05+00:00", "Sandpool 1.2.3 abcdef", "p99 100 ms", "MISSED", "nodes: simulated"):
        assert expected in text


PROVENANCE = {"date": "2026-01-02T03:04:05+00:00", "version": "1.2.3", "commit": "abcdef"}
