"""Renders a stored measurement as one self-contained HTML page with figures and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from sandpool.bench.accounting import WRITERS
from sandpool.bench.plots import Line, Point, bars, lines, waterfall

Run = Mapping[str, Any]

# Background and text of both colour schemes, and series colours that are distinct on both.
_STYLE: Final = """
:root { color-scheme: light dark; --ground: #fff; --text: #1c2024; --soft: #667078; --edge: #dfe3e8;
  --c0: #2563c9; --c1: #c2410c; --c2: #0f8a5f; --c3: #9333c4; --c4: #a16207; --c5: #be1e5a; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --text: #e8eaed; --soft: #9aa4ad; --edge: #30363c;
  --c0: #6ea8fe; --c1: #fb9a5b; --c2: #4ecf9c; --c3: #cf9bf5; --c4: #e3bd4b; --c5: #f783ac; } }
body { background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { border-top: 1px solid var(--edge); margin-top: 2.5rem; padding-top: 1.5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; } p.soft, code { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--edge); padding: .3rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
th { color: var(--soft); font-weight: 500; }
.judged td { text-align: left; vertical-align: top; white-space: normal; } .judged td:last-child { color: var(--soft);
  font-size: 13px; min-width: 18rem; }
svg { display: block; height: auto; max-width: 720px; width: 100%; } svg text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--edge); } .line { fill: none; stroke-width: 2; }
.legend span { margin-right: 1.2rem; } .legend i { border-radius: 2px; display: inline-block; height: .7em;
  margin-right: .4em; width: .7em; }
""" + "".join(
    f"rect.c{n} {{ fill: var(--c{n}); }} .line.c{n} {{ stroke: var(--c{n}); }} i.c{n} {{ background: var(--c{n}); }}\n"
    for n in range(6)
)

# The phases of a claim: from one moment to another.
_WAY: Final = (
    ("due until sent", "due", "sent"),
    ("create call", "sent", "answered"),
    ("sent until seen by the watch", "sent", "seen"),
    ("seen until it has a sandbox", "seen", "assigned"),
    ("has a sandbox until ready", "assigned", "ready"),
)
_NO_SAMPLES: Final = '<p class="soft">No claim was served.</p>'


def page(document: Mapping[str, Any]) -> str:
    """Render a page; ``document`` is the output of ``report.document``, or what was stored of it."""
    runs, machine = document["runs"], document["machine"]
    scenarios = dict.fromkeys(run["scenario"] for run in runs)
    about = f"{machine['cores']} cores, Python {machine['python']}, {machine['system']}"
    code = " ".join(filter(None, ("Sandpool", document.get("version"), document.get("commit"))))
    nodes = ", ".join(dict.fromkeys(f"nodes: {run['nodes']}" for run in runs if run.get("nodes")))
    about = ", ".join(filter(None, (document.get("date"), code, about, nodes)))
    sections = [_scenario(name, [run for run in runs if run["scenario"] == name]) for name in scenarios]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Sandpool benchmark</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>Sandpool benchmark</h1>\n<p><code>{escape(document['command'])}</code></p>\n"
        f'<p class="soft">{escape(about)}</p>\n{_figures(document)}{_summary(runs)}\n{_definitions()}\n'
        f"{''.join(sections)}</body>\n</html>\n"
    )


def _figures(document: Mapping[str, Any]) -> str:
    """Render the targets, where a run has any."""
    rows = [
        (
            figure["name"],
            figure["shown"],
            figure["target"],
            figure["verdict"],
            ", ".join(f"{key} {value}" for key, value in figure["details"].items()),
        )
        for figure in document.get("figures", ())
    ]
    wrong = "".join(f"<p><strong>{escape(text)}</strong></p>\n" for text in document.get("failures", ()))
    return f"{_table([('', 'measured', 'target', '', 'details'), *rows], 'judged')}\n{wrong}" if rows else ""


def _summary(runs: Sequence[Run]) -> str:
    head = (
        *("scenario", "where", "served", "p50 ms", "p90 ms", "p99 ms", "max ms", "target", ""),
        *("claims/s", "warm/cold", "pool full"),
    )
    rows = [
        (
            run["scenario"],
            run["home"],
            f"{run['served']:,} of {run['claims']:,}",
            *("-" if value is None else f"{value:,.1f}" for value in run["latency_ms"].values()),
            run.get("targets", ""),
            run.get("verdict", ""),
            f"{run['claims_per_second']:,.0f}",
            f"{run['warm']:,}/{run['cold']:,}",
            f"after {run['refilled_after_seconds']:,.1f} s",
        )
        for run in runs
    ]
    return _table([head, *rows])


def _definitions() -> str:
    return (
        '<p class="soft">A latency runs from the moment a claim is due to be created until the watch of the client '
        "that made it brings the first event with Ready=True; filling a pool, from the creation of the pool until the "
        "watch brings a sandbox that is ready. Percentiles are nearest rank. claims/s is the number of served claims "
        "divided by the time from the first claim until the last one was ready.</p>"
    )


def _scenario(name: str, runs: Sequence[Run]) -> str:
    curves = [Line(run["home"], curve) for run in runs if (curve := distribution(run))]
    cdf = lines(curves, "latency in ms", "% of claims") if curves else _NO_SAMPLES
    return f"<h2>{escape(name)}</h2>\n<h3>Latency</h3>\n{cdf}\n{''.join(_run(run) for run in runs)}"


def _run(run: Run) -> str:
    where = escape(run["home"])
    parts = [f"<h3>Pool and claims over time: {where}</h3>\n{lines(timeline(run), 'seconds', 'count')}\n"]
    if (rollout := run["rollout"]) is not None:
        parts.append(
            f"<p>The template changed after {rollout['changed']:,.1f} s; the pool was full of the new one "
            f"{rollout['seconds']:,.1f} s later; claims made after the change that were given an old sandbox: "
            f"{rollout['stale']:,}.</p>\n"
        )
    if run["requests"]:
        parts.append(f"<h3>Requests per claim: {where}</h3>\n{bars(requests(run))}\n{_costs(run)}\n")
    for percent, moments in run["waterfalls"].items():
        if percent in ("p50", "p99"):
            title = f"Waterfall of the claim at {percent}, {moments['name']}: {run['home']}"
            parts.append(f"<h3>{escape(title)}</h3>\n{waterfall(way(moments))}\n{_paragraph(afterwards(moments))}")
    parts += [_paragraph(text) for text in run["left_out"]]
    return "".join(parts)


def _costs(run: Run) -> str:
    """Render reconciles and CPU time per claim, conflicts and starvation in all, and memory at the end."""
    count = max(run["claims"], 1)
    rows = [(f"conflicts of {who}", "", f"{number:,}") for who, number in run["conflicts"].items()]
    rows += [(f"reconciles of {who}", "", f"{number / count:,.2f}") for who, number in run["reconciles"].items()]
    rows += [(f"CPU of {who}", "", f"{used / count * 1e3:,.2f} ms") for who, used in run["cpu_seconds"].items()]
    starved = run.get("starved_seconds", {})
    rows += [(f"{who} ready to run without a processor", "", f"{seconds:,.1f} s") for who, seconds in starved.items()]
    rows += [(f"memory of {who}", "", f"{size / 1e6:,.0f} MB") for who, size in run["memory_bytes"].items()]
    return _table([("per claim", "", ""), *rows]) if rows else ""


def distribution(run: Run) -> list[Point]:
    """Plot the share of ready claims over time; claims that were never served count too."""
    waits = sorted((ready - due) * 1e3 for due, ready in run["samples"] if ready is not None)
    total = len(run["samples"])
    return [(wait, 100 * number / total) for number, wait in enumerate(waits, 1)]


def timeline(run: Run) -> list[Line]:
    """Plot the ready sandboxes of the pool and the waiting claims over time."""
    changes = [(due, 1) for due, _ in run["samples"] if run["scenario"] != "fill"]
    changes += [(ready, -1) for _, ready in run["samples"] if ready is not None and run["scenario"] != "fill"]
    waiting, count = [(0.0, 0.0)], 0
    for moment, change in sorted(changes):
        count += change
        waiting.append((moment, count))
    # The level before the first claim is the one that the claims met.
    levels = [(max(at, 0.0), level) for at, level in run["levels"]]
    end = max((x for x, _ in (*levels, *waiting)), default=0.0)
    pool = Line("ready in the pool", [*levels, (end, levels[-1][1])] if levels else [], stepped=True)
    return [pool, Line("claims waiting", waiting, stepped=True)] if changes else [pool]


def requests(run: Run) -> list[tuple[str, float, int]]:
    """Render requests per claim by writer, the most frequent first."""
    count = max(run["claims"], 1)
    ordered = sorted(run["requests"], key=lambda each: (WRITERS.index(each["writer"]), -each["count"], each["what"]))
    return [
        (f"{each['writer']}: {each['what']}", each["count"] / count, WRITERS.index(each["writer"])) for each in ordered
    ]


def way(moments: Mapping[str, Any]) -> list[tuple[str, float, float, int]]:
    """Return the phases of a claim in milliseconds since it was due, each with a colour: the client's view, then the
    API calls until Ready by writer. Unknown phases are left out. A timer can fire early, before a claim is due."""
    due = moments["due"]

    def since(moment: float) -> float:
        return float(max(moment - due, 0.0) * 1e3)

    seen = [
        (name, since(moments[begin]), since(moments[end]), 0)
        for name, begin, end in _WAY
        if moments[begin] is not None and moments[end] is not None
    ]
    done = [
        (
            f"{call['writer']}: {call['what']}" + (f" ({call['code']})" if call["code"] >= 400 else ""),
            since(call["begin"]),
            since(call["end"]),
            1 + WRITERS.index(call["writer"]),
        )
        for call in moments.get("server", ())
        if not _is_late(call, moments)
    ]
    return seen + done


def afterwards(moments: Mapping[str, Any]) -> str:
    """List the calls after Ready; in the plot they would take all the room."""
    due = moments["due"]
    late = [
        f"{call['what']} ({call['writer']}) from {call['begin'] - due:,.2f} to {call['end'] - due:,.2f} s"
        for call in moments.get("server", ())
        if _is_late(call, moments)
    ]
    return f"Afterwards: {', '.join(late)}." if late else ""


def _is_late(call: Mapping[str, Any], moments: Mapping[str, Any]) -> bool:
    return moments["ready"] is not None and call["begin"] > moments["ready"]


def _paragraph(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>\n' if text else ""


def _table(rows: Sequence[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="wide"><table class="{kind}"><tr>{head}</tr>{body}</table></div>'
