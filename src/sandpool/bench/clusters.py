"""Loads an existing cluster, with whichever controller serves the API there.

Costs are known as far as they are readable: requests from the audit log, reconciles, CPU time and memory from metrics.
The report names what is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from sandpool.api.kinds import SANDBOX_WARM_POOL, SELF_SUBJECT_REVIEW
from sandpool.bench.accounting import CLIENT, CONTROLLERS, NODES, OTHERS
from sandpool.bench.environments import Place
from sandpool.bench.usage import Usage, usage_in
from sandpool.explain.audit import Audit, AuditedRequest, request_of_kubernetes, request_of_sandpool
from sandpool.install.errors import InstallError
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound

NO_REQUESTS = "requests and conflicts are not known: name the audit log of the API server with --audit-log"
NO_USAGE = "reconciles, processor time and memory are not known: name the controller's metrics with --metrics-url"

# Accounts of nodes and of the cluster itself, as Kubernetes names them.
_NODE_AGENTS = ("kubelet", "kube-scheduler", "simulated")
_NODE_USERS = ("system:node:", "system:kube-scheduler")
_OTHER_USERS = ("system:kube-controller-manager", "system:apiserver", "system:serviceaccount:kube-system:")
_OTHER_AGENTS = ("kube-controller-manager", "kube-apiserver")


@contextlib.asynccontextmanager
async def on_cluster(
    client: Client, *, name: str = "cluster", audit_log: Path | None = None, metrics: Mapping[str, str] | None = None
) -> AsyncIterator[Place]:
    """Measure on a cluster. ``metrics`` maps process names to URLs.

    Raises ``InstallError`` if the API is not installed, ``ConnectionError`` if metrics cannot be read."""
    try:
        await client.list(SANDBOX_WARM_POOL, limit=1)
    except NotFound:
        raise InstallError(
            "this cluster has no warm pools: install a controller first, as with sandpool install"
        ) from None
    sources = metrics or {}
    left_out = [*([] if audit_log else [NO_REQUESTS]), *([] if sources else [NO_USAGE])]
    audit = Audit(audit_log, asked_of_cluster) if audit_log is not None else None
    me = await _me(client) if audit is not None else ""
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def usage() -> Usage:
            used = Usage()
            for process, address in sources.items():
                try:
                    async with session.get(address) as answer:
                        used |= usage_in(await answer.text(), process)
                except aiohttp.ClientError as error:
                    raise ConnectionError(f"no metrics from {address}: {error}") from error
            return used

        yield Place(name, client, audit, writer_for(me), usage, tuple(left_out), shared=True, nodes="of the cluster")


def asked_of_cluster(line: Any) -> AuditedRequest:
    """Parse a line of an audit log of kube-apiserver, with any policy, or of the embedded API.

    A line about an earlier stage of a request yields a request about nothing."""
    if "code" in line:
        return request_of_sandpool(line)
    if line.get("stage", "ResponseComplete") != "ResponseComplete" or "responseStatus" not in line:
        return AuditedRequest("", "", "", "", "", "", 0, "")
    return request_of_kubernetes(line)


def writer_for(me: str) -> Callable[[AuditedRequest], str]:
    """Return a function that names the writer of a request; ``me`` is the user of the load.

    Every user that is not one of Kubernetes' own counts as a controller. In the embedded API the program decides."""

    def writer(asked: AuditedRequest) -> str:
        if asked.user == me and asked.agent.startswith("sandpool/"):
            return CLIENT
        if asked.user.startswith(_NODE_USERS) or asked.agent.startswith(_NODE_AGENTS) or _is_about_running(asked):
            return NODES
        of_kubernetes = asked.user.startswith(_OTHER_USERS) or asked.agent.startswith(_OTHER_AGENTS)
        return OTHERS if of_kubernetes else CONTROLLERS

    return writer


def _is_about_running(asked: AuditedRequest) -> bool:
    """Return whether only schedulers and nodes make such a request: bindings and pod status."""
    return asked.resource == "pods" and asked.subresource in ("binding", "status") and asked.writes


async def _me(client: Client) -> str:
    """Return the name of our user, as the API reports it."""
    review = {"apiVersion": SELF_SUBJECT_REVIEW.api_version, "kind": SELF_SUBJECT_REVIEW.kind}
    user: str = (await client.create(SELF_SUBJECT_REVIEW, review))["status"]["userInfo"]["username"]
    return user
