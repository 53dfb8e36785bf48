"""Simulated users whose claims have variables, and sandboxes that lose requests, answers and their processes.

Invariants, besides all others:

* **Only its own.** Variables of a claim are taken only by a sandbox that belongs to that claim, or to none any more.
* **Before Ready.** A claim with a late-bound sandbox is Ready only after that sandbox has taken the claim's variables.
* **Delivered or said.** At quiescence, the sandbox of a ready claim has exactly the claim's variables: those that its
  present life has taken, or those in its pod. Without crashes, a claim whose handshake failed says so.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from sandpool.api import labels
from sandpool.api.conditions import ENVIRONMENT_BOUND
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE
from sandpool.api.resource import Object, ResourceType
from sandpool.api.warmpool import ON_REPLENISH, RECREATE
from sandpool.engine.clock import timestamp
from sandpool.kube.client import Client
from sandpool.kube.late_binding import BindRequest
from sandpool.server.store.entry import Change
from sandpool.testing.objects import new
from sandpool.testing.simulated_binder import Fault, SimulatedBinder
from sandpool.testing.simulation.crash import WriteKind
from sandpool.testing.simulation.invariants import Violation
from sandpool.testing.simulation.object_facts import condition, is_ready, name_of, owner_uid, uid_of
from sandpool.testing.simulation.profile import Profile
from sandpool.testing.simulation.simulation import Scenario
from sandpool.testing.simulation.world import NAMESPACE
from tests.support.simulation.users import SimulatedUsers, UserSimulation

#: Many claims meet full pools, and many pods restart.
WITH_VARIABLES = Profile(
    "claims with variables",
    {"claim": 3, "burst": 8, "disturb": 12, "suspend": 2},
    starts_full=(True,),
    strategies=(RECREATE, ON_REPLENISH),
    lag=(0.0, 0.002, 0.02),
    watch_lag=(0.0, 0.1, 1.0),
    fault_rate=(0.0, 0.02),
    crashes=(0,),
)
#: The same, with controllers that are killed at their writes.
WITH_CRASHES = replace(
    WITH_VARIABLES,
    name="claims with variables and crashes",
    crashes=(1, 2, 3),
    crash_writes=(WriteKind.ADOPTION, WriteKind.STATUS, WriteKind.ANY),
)


class LateBindingUsers(SimulatedUsers):
    """Most claims have variables, and the template lets warm sandboxes take them."""

    def _claim(self) -> Object:
        spec = super()._claim()
        spec.pop("env", None)
        spec.pop("volumeClaimTemplates", None)
        if self.rng.random() < 0.8:
            spec["env"] = [{"name": "A", "value": f"value-{self.rng.randrange(1000)}"}]
        return spec

    async def _create(self, type: ResourceType, name: str, spec: Object) -> None:
        metadata = {"annotations": {labels.LATE_BINDING: "true"}} if type == SANDBOX_TEMPLATE else {}
        await self._try(lambda: self.client.create(type, new(type, name, metadata=metadata, spec=spec), NAMESPACE))


class UnreliableBinder(SimulatedBinder):
    """Loses requests and answers, and kills the controllers on the way."""

    def __init__(self, simulation: LateBindingSimulation) -> None:
        super().__init__(simulation.clock, self._drawn)
        self.simulation = simulation
        self.rng = Random(simulation.seed)
        self.rate = self.rng.choice((0.0, 0.3, 0.8))
        self.kill_rate = self.rng.choice((0.0, 0.0, 0.1))
        self.round_trip = self.rng.choice((0.001, 0.1))
        self.taken: set[tuple[str, str]] = set()  # names of pods and UIDs of claims

    def heal(self) -> None:
        self.rate = self.kill_rate = 0.0

    def _drawn(self, request: BindRequest) -> Fault:
        if self.rng.random() >= self.rate:
            return Fault.NONE
        faults = Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.UNAVAILABLE, Fault.SILENT, Fault.STALLED
        return self.rng.choice(faults)

    async def bind(self, request: BindRequest) -> None:
        self._perhaps_kill()
        await super().bind(request)
        self._perhaps_kill()

    def _perhaps_kill(self) -> None:
        if self.rng.random() < self.kill_rate:
            self.simulation.trace.note("binder", "kills the controllers")
            self.simulation.processes[-1].kill()

    def _deliver(self, request: BindRequest) -> bytes:
        before = len(self.deliveries)
        answer = super()._deliver(request)
        if len(self.deliveries) > before:
            name = request.pod["metadata"]["name"]
            self.taken.add((name, request.claim_uid))
            self.simulation.check_delivery(name, request.claim_uid)
        return answer


class LateBindingSimulation(UserSimulation):
    binder: UnreliableBinder

    def __init__(self, seed: int, scenario: Scenario | None = None) -> None:
        super().__init__(seed, scenario)
        self._restarts = 0

    def make_binder(self) -> SimulatedBinder:
        return UnreliableBinder(self)

    def prepare(self, client: Client) -> None:
        super().prepare(client)
        self.users = LateBindingUsers(
            client, self.store, self.nodes, self.faults, self.profile, self.clock, self.rng, self.trace
        )
        self.store.add_write_observer(self._check_claim)
        self.nodes._flap = self._restart  # type: ignore[method-assign]

    async def play(self) -> None:
        await super().play()
        self.binder.heal()

    async def _story(self) -> None:
        await super()._story()
        for claim in self._all(SANDBOX_CLAIM):
            if claim["spec"].get("env") and is_ready(claim):
                self._check_ready(claim)

    def _all(self, type: ResourceType) -> list[Object]:
        return [entry.decode() for entry in self.store.scan(type.group_resource, NAMESPACE)]

    def _named(self, type: ResourceType, name: str) -> Object | None:
        return next((each for each in self._all(type) if name_of(each) == name), None)

    async def _restart(self, pod: Any) -> None:
        """The container of a pod ends and starts again: what it was given is lost."""
        await self.nodes._report(pod, "Running", ready=False)
        self.binder.restart(pod.uid)
        self._restarts += 1
        ended = {"reason": "Error", "exitCode": self._restarts, "finishedAt": timestamp(self.clock.now())}
        container = {"name": "main", "image": "i", "imageID": "", "ready": True, "restartCount": 1}
        container |= {"state": {"running": {}}, "lastState": {"terminated": ended}}
        await self.nodes._status(pod, {"containerStatuses": [container]})
        await self.nodes._pause(3.0)
        await self.nodes._report(pod, "Running", ready=True)

    def check_delivery(self, pod: str, claim_uid: str) -> None:
        sandbox = self._named(SANDBOX, pod)
        if sandbox is not None and owner_uid(sandbox) not in ("", claim_uid):
            raise Violation("only its own", f"sandbox {pod} of {owner_uid(sandbox)} took variables of {claim_uid}")

    def _check_claim(self, resource: str, change: Change, writer: str) -> None:
        if resource != SANDBOX_CLAIM.group_resource or change.type == "DELETED" or not is_ready(change.object):
            return
        claim = change.object
        name = claim["status"]["sandbox"]["name"]
        sandbox = self._named(SANDBOX, name)
        is_late = sandbox is not None and _is_late_bound(sandbox)
        if is_late and (name, uid_of(claim)) not in self.binder.taken:
            self._fail(Violation("before Ready", f"{name_of(claim)} is ready, and {name} has not taken its variables"))

    def _check_ready(self, claim: Object) -> None:
        name = claim["status"]["sandbox"]["name"]
        sandbox, pod = self._named(SANDBOX, name), self._named(POD, name)
        assert sandbox is not None and pod is not None, "checked before"
        wanted = {each["name"]: each["value"] for each in claim["spec"]["env"]}
        if _is_late_bound(sandbox):
            has = self.binder.environments.get(uid_of(pod), {})
            if self.binder.claims.get(uid_of(pod)) != uid_of(claim) or has != wanted:
                raise Violation("delivered or said", f"{name} has {has} instead of {wanted}")
            return
        (container,) = sandbox["spec"]["podTemplate"]["spec"]["containers"]
        has = {each["name"]: each["value"] for each in container.get("env") or ()}
        if has != wanted:
            raise Violation("delivered or said", f"the pod of {name} has {has} instead of {wanted}")
        asked = any(request.claim_uid == uid_of(claim) for request in self.binder.requests)
        said = condition(claim, ENVIRONMENT_BOUND).get("status")
        if asked and len(self.processes) == 1 and said != "False":
            raise Violation("delivered or said", f"{name_of(claim)} does not say why {name} was created")


def _is_late_bound(sandbox: Object) -> bool:
    found = (sandbox["metadata"].get("annotations") or {}).get(labels.LATE_BOUND)
    return bool(found == "true")
