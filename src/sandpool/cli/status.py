"""``sandpool status``: the home or cluster on one screen."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from sandpool.api.conditions import READY, condition_of, is_ready
from sandpool.api.kinds import NODE, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.printable import one_line
from sandpool.api.quantity import parse
from sandpool.api.resource import Object
from sandpool.cli.output import age, document_option, show_document, size
from sandpool.home.connection import Target, resolve
from sandpool.home.discovery import Home
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.kube.http import HttpTransport

_ROUTER_SECONDS: Final = 2.0
_LINES: Final = 15  # of each list; the rest is counted


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), help="Kubeconfig of the cluster.")
@click.option("--context", help="Context of the kubeconfig, or name of a local home.")
@document_option
def status(kubeconfig: Path | None, context: str | None, output: str) -> None:
    """Show the local home, or the cluster of a context: what runs, nodes, pools and claims of all namespaces.

    Exits with 1 if the API or the router does not answer."""
    target = resolve(kubeconfig, context)
    found = uvloop.run(_observe(target))
    if output == "table":
        click.echo("\n".join(_screen(found)))
    else:
        show_document(found, output)
    if found["router"] is not None and found["router"]["answers"] is False:
        raise click.exceptions.Exit(1)


async def _observe(target: Target) -> dict[str, Any]:
    connection = target.connection()
    client = Client(HttpTransport(connection))
    try:
        lists = [_items(client, type) for type in (NODE, SANDBOX_WARM_POOL, SANDBOX_CLAIM, SANDBOX)]
        nodes, pools, claims, sandboxes = await asyncio.gather(*lists)
    except (OSError, TimeoutError) as error:
        raise click.ClickException(f"the API at {connection.server} does not answer: {error}") from None
    finally:
        await client.close()
    return {
        "source": str(target.source),
        "server": connection.server,
        "home": None if target.home is None else _home(target.home),
        "router": None if target.home is None else await asyncio.to_thread(_router, target.home),
        "nodes": [_node(each) for each in nodes],
        "pools": [_pool(each) for each in pools],
        "claims": [_claim(each) for each in claims],
        "sandboxes": {"total": len(sandboxes), "ready": sum(map(is_ready, sandboxes))},
    }


async def _items(client: Client, type: Any) -> Sequence[Object]:
    try:
        items: Sequence[Object] = (await client.list(type, None))["items"]
    except NotFound:
        return ()  # a cluster without Sandpool's kinds
    return items


def _home(home: Home) -> dict[str, Any]:
    return {
        "name": home.name,
        "pid": home.pid,
        "version": home.version,
        "started": home.started.isoformat(),
        "dataDir": str(home.data_dir),
        "kubeconfig": str(home.kubeconfig),
        "log": None if home.log is None else str(home.log),
        "metrics": home.metrics_url,
        "dashboard": home.dashboard_url,
        "e2b": home.e2b_url,
        "node": home.node,
    }


def _router(home: Home) -> dict[str, Any] | None:
    if home.router_url is None:
        return None
    try:
        with urllib.request.urlopen(f"{home.router_url}/healthz", timeout=_ROUTER_SECONDS) as response:
            answers = response.status == 200
    except (OSError, urllib.error.URLError):
        answers = False
    return {"url": home.router_url, "answers": answers}


def _node(node: Object) -> dict[str, Any]:
    capacity = (node.get("status") or {}).get("allocatable") or {}
    return {
        "name": node["metadata"]["name"],
        "ready": is_ready(node),
        "cpu": capacity.get("cpu"),
        "memory": capacity.get("memory"),
        "pods": capacity.get("pods"),
    }


def _pool(pool: Object) -> dict[str, Any]:
    return {
        "namespace": pool["metadata"]["namespace"],
        "name": pool["metadata"]["name"],
        "desired": pool["spec"].get("replicas", 0),
        "ready": (pool.get("status") or {}).get("readyReplicas") or 0,
    }


def _claim(claim: Object) -> dict[str, Any]:
    condition = condition_of(claim, READY) or {}
    return {
        "namespace": claim["metadata"]["namespace"],
        "name": claim["metadata"]["name"],
        "ready": is_ready(claim),
        "reason": condition.get("reason"),
        "sandbox": ((claim.get("status") or {}).get("sandbox") or {}).get("name"),
    }


def _screen(found: Mapping[str, Any]) -> Iterator[str]:
    home, router = found["home"], found["router"]
    if home is not None:
        yield f"home       {home['name']}, pid {home['pid']}, version {home['version']}, up {age(home['started'])}"
    yield f"API        {found['server']}   answers (chosen by {found['source']})"
    if router is not None:
        yield f"router     {router['url']}   {'answers' if router['answers'] else 'DOES NOT ANSWER'}"
    if home is not None:
        if home["dashboard"]:
            yield f"dashboard  {home['dashboard']}   log in with: sandpool dashboard"
        if home["e2b"]:
            yield f"e2b        {home['e2b']}   make a key with: sandpool e2b key create"
        yield f"data       {home['dataDir']}"
        if home["log"]:
            yield f"log        {home['log']}"
    sandboxes, claims = found["sandboxes"], found["claims"]
    ready = sum(each["ready"] for each in claims)
    yield f"sandboxes  {sandboxes['total']}, {sandboxes['ready']} ready"
    yield f"claims     {len(claims)}, {ready} ready"
    yield from _list(
        ("NODE", "READY", "CPU", "MEMORY", "PODS"),
        [(n["name"], _yes(n["ready"]), n["cpu"] or "", _bytes(n["memory"]), n["pods"] or "") for n in found["nodes"]],
    )
    yield from _list(
        ("POOL", "READY", "DESIRED"),
        [(_full(pool), str(pool["ready"]), str(pool["desired"])) for pool in found["pools"]],
    )
    # Claims that wait come first: they are why a user looks.
    waiting_first = sorted(claims, key=lambda claim: claim["ready"])
    yield from _list(
        ("CLAIM", "READY", "SANDBOX", "REASON"),
        [(_full(each), _yes(each["ready"]), each["sandbox"] or "", each["reason"] or "") for each in waiting_first],
    )


def _list(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    shown = [head, *(list(map(one_line, row)) for row in rows[:_LINES])]
    widths = [max(len(row[index]) for row in shown) for index in range(len(head))]
    yield ""
    for row in shown:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if len(rows) > _LINES:
        yield f"... and {len(rows) - _LINES} more"


def _full(found: Mapping[str, Any]) -> str:
    return str(found["name"] if found["namespace"] == "default" else f"{found['namespace']}/{found['name']}")


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _bytes(amount: str | None) -> str:
    return "" if amount is None else size(parse(amount).billionths / 1e9)
