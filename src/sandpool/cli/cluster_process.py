"""Options of the processes that run controllers for a Kubernetes cluster, with the flags of other controllers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sandpool.cli.flags import duration
from sandpool.engine.leaderelection import LeaseTiming

F = TypeVar("F", bound=Callable[..., Any])

_TIMING: Final = LeaseTiming()


def _all(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


#: ``kubeconfig`` and ``context``.
connection_options: Final = _all(
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Kubeconfig of the cluster. [default: as kubectl, or the pod's service account]",
    ),
    click.option("--context", help="Context of the kubeconfig. [default: the current one]"),
)

#: ``metrics_bind_address`` and ``health_probe_bind_address``.
address_options: Final = _all(
    click.option(
        "--metrics-bind-address", default=":8080", show_default=True, help="Listen address for metrics; 0 disables it."
    ),
    click.option(
        "--health-probe-bind-address",
        default=":8081",
        show_default=True,
        help="Listen address for probes; 0 disables it.",
    ),
)

#: ``leader_election_namespace`` and the arguments of ``lease_timing``.
lease_options: Final = _all(
    click.option(
        "--leader-election-namespace",
        default="",
        help="Namespace of the lease. [default: that of the pod or the context]",
    ),
    duration(
        "--leader-elect-lease-duration",
        f"{_TIMING.duration}s",
        "Time without renewal after which another process may take the lease.",
    ),
    duration(
        "--leader-elect-renew-deadline", f"{_TIMING.deadline:g}s", "Time without renewal after which the leader stops."
    ),
    duration(
        "--leader-elect-retry-period",
        f"{_TIMING.retry:g}s",
        "Time between attempts to renew or acquire the lease.",
        positive=True,
    ),
)

#: ``kube_api_qps`` and ``kube_api_burst``.
rate_options: Final = _all(
    click.option(
        "--kube-api-qps",
        type=float,
        default=-1.0,
        show_default=True,
        help="Requests per second to the API; -1 means no limit.",
    ),
    click.option(
        "--kube-api-burst",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        help="Burst of requests above --kube-api-qps.",
    ),
)


def lease_timing(duration: float, deadline: float, retry: float) -> LeaseTiming:
    """The timing of these flags. Raises ``ValueError``."""
    if duration != int(duration):
        raise ValueError("--leader-elect-lease-duration must be whole seconds, the resolution of a Lease")
    try:
        return LeaseTiming(int(duration), deadline, retry)
    except ValueError:
        raise ValueError(
            "--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline, "
            "and that longer than --leader-elect-retry-period"
        ) from None
