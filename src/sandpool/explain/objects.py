"""Explain the state of a sandbox, a pool, a template or a pod.

Each function reads the object, the objects it depends on and their events, and raises ``NotFound`` or ``Forbidden``
for the object itself only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from sandpool.api import conditions as api
from sandpool.api import labels
from sandpool.api.conditions import FALSE, TRUE, Condition, find_condition
from sandpool.api.events import WARNING
from sandpool.api.kinds import CORE_EVENT, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import SharedObject
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView, parse_time
from sandpool.explain.blockers import IMAGE_ADVICE, PULLING, WAKE_ADVICE, Blocker, asleep_since, pod_blocker
from sandpool.explain.claim import Explanation, Link, explain_claim
from sandpool.explain.observe import Reader, observe_claim
from sandpool.explain.observed import EventView, Observed, failure_of, idle_containers
from sandpool.kube.client import Client

_STARTING: Final = ("", "ContainerCreating", "PodInitializing")  # reasons of containers that have no log yet
_EVENTS: Final = 8  # the last ones are shown
_EXAMINED: Final = 20  # members of a pool whose pods and events are read
_MEMBERS: Final = 3  # different problems of a pool's members that are shown


async def explain_object(client: Client, kind: str, namespace: str, name: str, now: datetime) -> Explanation:
    """Explain a claim, sandbox, pool, template or pod; ``kind`` is one of these words."""
    match kind:
        case "sandbox":
            return await explain_sandbox(client, namespace, name, now)
        case "pool":
            return await explain_pool(client, namespace, name, now)
        case "template":
            return await explain_template(client, namespace, name)
        case "pod":
            return await explain_pod(client, namespace, name)
    return explain_claim(await observe_claim(client, namespace, name, now))


async def explain_sandbox(client: Client, namespace: str, name: str, now: datetime) -> Explanation:
    """Explain why a sandbox runs, is suspended or is not ready."""
    found = await client.get(SANDBOX, name, namespace)
    reader = Reader(client, namespace)
    sandbox = SandboxView.from_object(found)
    pod = await reader.get(POD, sandbox.pod_name)
    events = await _events(reader, sandbox.name, sandbox.pod_name)
    blocked = _sandbox_blocker(sandbox, _seen(sandbox, pod, events, now, reader), has_pod=pod is not None)
    what = f'Sandbox "{name}"'
    sentence = f"{what} is ready{_owned(sandbox)}." if blocked is None else f"{what} is not ready: {_line(blocked)}."
    chain = [Link(sandbox.creation_timestamp, f"created{_made_from(found)}")]
    chain += _event_links(events, {sandbox.uid, *([] if pod is None else [pod["metadata"]["uid"]])})
    chain += _transitions(sandbox.status.conditions)
    return Explanation(sentence, tuple(_in_order(chain)), "" if blocked is None else blocked.advice, _unknown(reader))


async def explain_pod(client: Client, namespace: str, name: str) -> Explanation:
    """Explain why a pod is ready or not, with its containers."""
    pod = await client.get(POD, name, namespace)
    reader = Reader(client, namespace)
    status, metadata = pod.get("status") or {}, pod["metadata"]
    conditions = status.get("conditions") or []
    ready = find_condition(conditions, api.READY)
    scheduled = find_condition(conditions, api.POD_SCHEDULED)
    idle = idle_containers(pod)
    advice = ""
    if ready is not None and ready["status"] == TRUE:
        node = pod["spec"].get("nodeName")
        why = f"is ready on node {node}"
    elif metadata.get("deletionTimestamp"):
        why = "is being deleted"
    elif failure := failure_of(pod):
        why, advice = f"has failed: {failure}", "fix the cause, most likely in the template"
    elif idle:
        reasons = "; ".join(f'container "{each.name}": {each.reason} {each.message}'.strip() for each in idle)
        why = f"is not ready: {reasons}"
        if any(each.reason in PULLING for each in idle):
            advice = IMAGE_ADVICE
        elif any(each.restarts or each.reason not in _STARTING for each in idle):
            advice = f"look at its log: sandpool logs {name}"
    elif scheduled is not None and scheduled["status"] == FALSE:
        why, advice = f"has no node: {scheduled.get('message') or scheduled.get('reason')}", "add nodes or request less"
    else:
        why = f"is not ready: its phase is {status.get('phase', 'Pending')}"
    chain = [Link(parse_time(metadata.get("creationTimestamp")), "created")]
    chain += _event_links(await _events(reader, name), {metadata["uid"]})
    for each in status.get("containerStatuses") or ():
        if ended := (each.get("lastState") or {}).get("terminated"):
            text = f'container "{each["name"]}" ended before with exit code {ended["exitCode"]} ({ended.get("reason")})'
            chain.append(Link(parse_time(ended.get("finishedAt")), text))
    chain += _transitions(conditions)
    sentence = f'Pod "{name}" {" ".join(why.split())}.'
    return Explanation(sentence, tuple(_in_order(chain)), advice, _unknown(reader))


async def explain_pool(client: Client, namespace: str, name: str, now: datetime) -> Explanation:
    """Explain why a pool is full or not, with the reasons of the members that are not ready."""
    pool = WarmPoolView.from_object(await client.get(SANDBOX_WARM_POOL, name, namespace))
    reader = Reader(client, namespace)
    template = await reader.get(SANDBOX_TEMPLATE, pool.template)
    status = pool.status
    ready = f"{status.ready_replicas} of {pool.replicas} sandboxes are ready"
    progress = find_condition(status.conditions, api.PROGRESSING)
    members = [
        box
        for each in await reader.find(SANDBOX, labels.WARM_POOL)
        if (box := SandboxView.from_object(each)).owner is not None and box.owner.uid == pool.uid
    ]
    waiting = [box for box in members if not box.ready][:_EXAMINED]
    problems = [await _member_problem(reader, box, now) for box in waiting]
    common = [text for text, _ in Counter(filter(None, problems)).most_common(_MEMBERS)]
    advice = ""
    if template is None and SANDBOX_TEMPLATE.plural not in reader.unseen:
        why, advice = (
            f'its template "{pool.template}" does not exist',
            f"create it: sandpool template create {pool.template}",
        )
    elif status.ready_replicas >= pool.replicas:
        why = ""
    elif progress is not None and progress["status"] == FALSE:
        why, advice = progress["message"], "fix the cause that the message names; the pool retries by itself"
    else:
        why = common[0] if common else "it is being refilled"
    if common and why != common[0]:
        why = f"{why}; {common[0]}" if why else why
    sentence = f'Pool "{name}": {ready}{": " + _plain(why) if why else ""}.'
    chain = [Link(pool.creation_timestamp, f'created, with sandboxes of template "{pool.template}"')]
    chain += _event_links(await _events(reader, name), {pool.uid})
    chain += _transitions(status.conditions)
    if template is not None:
        chain += _unmounted(template)
    for text in common:
        count = sum(each == text for each in problems)
        chain.append(Link(None, f"{count} {'member is' if count == 1 else 'members are'} not ready: {text}"))
    if outdated := status.replicas - status.updated_replicas:
        chain.append(Link(None, f"{outdated} of {status.replicas} members have an older revision of the template"))
    return Explanation(sentence, tuple(_in_order(chain)), advice, _unknown(reader))


async def explain_template(client: Client, namespace: str, name: str) -> Explanation:
    """Explain what uses a template, and what its controller reports about it."""
    template = await client.get(SANDBOX_TEMPLATE, name, namespace)
    reader = Reader(client, namespace)
    uid = template["metadata"]["uid"]
    pools = [WarmPoolView.from_object(each) for each in await reader.find(SANDBOX_WARM_POOL)]
    users = [pool for pool in pools if pool.template == name]
    events = await _events(reader, name)
    warnings = [event for event in events if event.uid == uid and event.type == WARNING]
    advice = ""
    if warnings:
        state = f"has a problem: {_plain(warnings[-1].note)}"
    elif not users:
        state, advice = "is used by no pool", f"make a pool of it: sandpool pool create {name}"
    else:
        ready = sum(pool.status.ready_replicas for pool in users)
        state = f"is used by {_names('pool', [pool.name for pool in users])} with {ready} ready sandboxes"
    chain = [Link(parse_time(template["metadata"].get("creationTimestamp")), "created")]
    for pool in users:
        updated = f"{pool.status.updated_replicas} of {pool.status.replicas} members"
        text = f'pool "{pool.name}": {updated} have its current revision'
        chain.append(Link(None, text))
    if unmounted := _unmounted(template):
        chain += unmounted
        advice = advice or "add volumeMounts to a container of the template, or remove the volume"
    chain += _event_links(events, {uid})
    return Explanation(f'Template "{name}" {state}.', tuple(_in_order(chain)), advice, _unknown(reader))


# -- parts -----------------------------------------------------------------------------------------------------------


def _sandbox_blocker(sandbox: SandboxView, observed: Observed, *, has_pod: bool) -> Blocker | None:
    ready = sandbox.status.condition(api.READY)
    if sandbox.deleting:
        return Blocker("it is being deleted")
    if sandbox.asleep:
        return Blocker(asleep_since(sandbox), WAKE_ADVICE)
    if sandbox.suspended:
        return Blocker("it is suspended", f"resume it: sandpool resume {sandbox.name}")
    if ready is None and not has_pod:
        return Blocker("no controller has reconciled it yet", "check that the controllers run: sandpool status")
    if ready is None:
        # The status of a launch under way is written late; the pod says more.
        return pod_blocker(observed, sandbox, "no status yet")
    if ready["status"] == TRUE:
        return None
    if ready["reason"] == api.SANDBOX_EXPIRED[0]:
        return Blocker("it has expired", "claim a new one")
    if ready["reason"] in (api.RECONCILER_ERROR, api.MULTIPLE_PODS):
        return Blocker(ready["message"], "fix the cause that the message names")
    if ready["reason"] in (api.POD_SUCCEEDED[0], api.POD_FAILED[0]):
        cause = f"its pod has ended: {observed.failure or ready['message']}"
        return Blocker(cause, "claim a new one; the log may show why it ended")
    return pod_blocker(observed, sandbox, ready["message"])


def _seen(
    sandbox: SandboxView, pod: SharedObject | None, events: Iterable[EventView], now: datetime, reader: Reader
) -> Observed:
    """The observation that causes are found in. They are those of claims, so a claim stands for the sandbox itself."""
    nameless = ClaimView.from_object({"metadata": {"name": sandbox.name, "namespace": sandbox.namespace, "uid": ""}})
    return Observed(
        now,
        nameless,
        sandbox=sandbox,
        containers=() if pod is None else idle_containers(pod),
        failure="" if pod is None else failure_of(pod),
        events=tuple(events),
        unseen=frozenset(reader.unseen),
    )


async def _member_problem(reader: Reader, sandbox: SandboxView, now: datetime) -> str:
    pod = await reader.get(POD, sandbox.pod_name)
    events = await _events(reader, sandbox.pod_name)
    blocked = _sandbox_blocker(sandbox, _seen(sandbox, pod, events, now, reader), has_pod=pod is not None)
    return "" if blocked is None else _line(blocked)


async def _events(reader: Reader, *names: str) -> list[EventView]:
    found = [
        EventView.from_object(event)
        for name in dict.fromkeys(names)
        for event in await reader.find(CORE_EVENT, fields=f"involvedObject.name={name}")
    ]
    return sorted(found, key=lambda event: "" if event.at is None else event.at.isoformat())


def _event_links(events: Iterable[EventView], uids: set[str]) -> list[Link]:
    mine = [event for event in events if event.uid in uids]
    return [Link(event.at, f"{event.kind}: {event.reason}: {_plain(event.note)}") for event in mine[-_EVENTS:]]


def _transitions(conditions: Iterable[Condition]) -> Iterator[Link]:
    for each in conditions:
        message = f": {_plain(each['message'])}" if each.get("message") else ""
        reason = f" ({each['reason']})" if each.get("reason") else ""
        yield Link(parse_time(each.get("lastTransitionTime")), f"{each['type']} is {each['status']}{reason}{message}")


def _unmounted(template: SharedObject) -> list[Link]:
    names = TemplateView.from_object(template).unmounted_volumes
    return [Link(None, f'warning: volume "{name}" of the template is mounted in no container') for name in names]


def _in_order(chain: Iterable[Link]) -> list[Link]:
    """Sort by time. Times of conditions are whole seconds: links of one second stay in the order of the chain."""
    timed: list[tuple[datetime, Link]] = []
    untimed: list[Link] = []
    for link in chain:
        if link.at is None:
            untimed.append(link)
        else:
            timed.append((link.at.replace(microsecond=0), link))
    return [*(link for _, link in sorted(timed, key=lambda each: each[0])), *untimed]


def _owned(sandbox: SandboxView) -> str:
    owner = sandbox.owner
    if owner is None:
        return ""
    if owner.kind == SANDBOX_CLAIM.kind:
        return f' and belongs to claim "{owner.name}"'
    return f', idle in pool "{owner.name}"' if owner.kind == SANDBOX_WARM_POOL.kind else ""


def _made_from(sandbox: SharedObject) -> str:
    template = (sandbox["metadata"].get("annotations") or {}).get(labels.TEMPLATE_REF)
    return f' from template "{template}"' if template else ""


def _names(kind: str, names: list[str]) -> str:
    return f"{kind if len(names) == 1 else kind + 's'} {', '.join(sorted(names))}"


def _line(blocked: Blocker) -> str:
    return _plain(blocked.cause)


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(". ")


def _unknown(reader: Reader) -> tuple[str, ...]:
    return tuple(f"{plural}: what they say about it" for plural in sorted(reader.unseen))
