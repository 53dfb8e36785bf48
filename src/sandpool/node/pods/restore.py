"""The life of a pod as an earlier agent left it, read from the status in the API.

What runs is not decided here: a container that the status says runs is running only if the runtime finds it, which the
worker looks for afterwards. Everything else, such as how often it was restarted and how it ended, the API knows best.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sandpool.api.resource import Object
from sandpool.api.views.pod import FAILED
from sandpool.api.views.times import parse_time
from sandpool.node.pods.life import ContainerLife, Ending, Life, Moment, Problem, Stage
from sandpool.node.pods.phase import work_finished
from sandpool.node.pods.refusals import REASON
from sandpool.node.pods.room import is_shortage
from sandpool.node.pods.spec import Container, Pod, ProbeKind
from sandpool.node.pods.tally import Tally

# What is said of a run that nobody saw the end of.
_LOST = "ContainerStatusUnknown"
_LOST_CODE = 137


def restored(pod: Pod, now: Moment) -> Life:
    """Before anything was looked for: nothing runs."""
    status = pod.object.get("status") or {}
    life = Life.of(pod, begun=parse_time(status.get("startTime")) or now.time)
    if status.get("phase") == FAILED and status.get("reason"):
        problem = Problem(status["reason"], status.get("message") or "")
        refused = problem.reason == REASON or is_shortage(problem.reason)
        life = replace(life, refusal=problem) if refused else replace(life, doom=problem)
    reported = {each["name"]: each for kind in _KINDS for each in status.get(kind) or ()}
    found = {each.name: _container(reported[each.name], now) for each in pod.every if each.name in reported}
    return replace(life, containers={**life.containers, **found})


def runs(pod: Pod, name: str) -> bool:
    """Whether a container ran when it was last reported."""
    return "running" in (_reported(pod, name).get("state") or {})


def lost(life: Life, container: Container, now: Moment) -> Life:
    """A container ran when it was last reported, and nothing is left of it."""
    began = parse_time(((_reported(life.pod, container.name).get("state") or {}).get("running") or {}).get("startedAt"))
    message = "The container could not be located when the node came back"
    known = life[container.name]
    ending = Ending(_LOST_CODE, _LOST, now, began, message, container_id=known.container_id)
    return life.put(container.name, stage=Stage.ENDED, ending=ending, previous=known.ending)


def started_over(life: Life) -> Life:
    """Of a pod of which nothing runs any more, and which is to go on: what its init containers did may be gone, too."""
    if work_finished(life):
        return life
    for container in life.pod.init:
        life = life.put(container.name, stage=Stage.WAITING)
    return life


def found_running(life: Life, container: Container, since: datetime, now: Moment) -> Life:
    """A container that runs. It is as ready as it was said to be, until its probes say otherwise."""
    status = _reported(life.pod, container.name)
    ready, started = bool(status.get("ready")), bool(status.get("started"))
    age = max((now.time - since).total_seconds(), 0.0)
    begin = Moment(now.at - age, since)
    tallies = {kind: Tally.begin(probe, begin.at) for kind, probe in container.probes.items()}
    if ready and ProbeKind.READINESS in tallies:
        tallies[ProbeKind.READINESS] = replace(tallies[ProbeKind.READINESS], good=True, pause=None)
    if started and ProbeKind.STARTUP in tallies:
        tallies[ProbeKind.STARTUP] = replace(tallies[ProbeKind.STARTUP], good=True)
    return life.put(container.name, stage=Stage.RUNNING, since=begin, tallies=tallies)


_KINDS = ("initContainerStatuses", "containerStatuses")


def _reported(pod: Pod, name: str) -> Object:
    """The last status of a container; empty if there is none."""
    status = pod.object.get("status") or {}
    found = (each for kind in _KINDS for each in status.get(kind) or () if each["name"] == name)
    return next(found, {})


def _container(status: Object, now: Moment) -> ContainerLife:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    ended = _ending(state.get("terminated"), now)
    before = _ending(last.get("terminated"), now)
    return ContainerLife(
        stage=Stage.WAITING if ended is None and before is None else Stage.ENDED,
        restarts=status.get("restartCount") or 0,
        ending=ended or before,
        previous=before if ended is not None else None,
        image_id=status.get("imageID") or "",
        image=status.get("image") or "",
        container_id=(status.get("containerID") or "").rpartition("/")[2],
    )


def _ending(terminated: Object | None, now: Moment) -> Ending | None:
    if terminated is None:
        return None
    time = parse_time(terminated.get("finishedAt")) or now.time
    age = max((now.time - time).total_seconds(), 0.0)
    return Ending(
        terminated.get("exitCode") or 0,
        terminated.get("reason") or "",
        Moment(now.at - age, time),
        parse_time(terminated.get("startedAt")),
        terminated.get("message") or "",
        terminated.get("signal") or 0,
        (terminated.get("containerID") or "").rpartition("/")[2],
    )
