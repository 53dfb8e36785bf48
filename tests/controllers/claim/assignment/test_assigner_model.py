"""The assigner against a model that keeps plain lists and looks through all of them every time."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandpool.api.resource import Key
from sandpool.controllers.claim.assignment.assigner import Assigner, Candidate, Lease, Stage
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest

POOLS = (Key("default", "p"), Key("default", "q"))
SANDBOXES = st.integers(0, 7).map(lambda number: ("default", f"s{number}"))
CLAIMS = st.integers(0, 4).map(lambda number: ("default", f"c{number}"))
OFFERS = st.builds(
    Candidate,
    sandbox=SANDBOXES,
    uid=st.just("1"),
    pool=st.sampled_from(POOLS),
    compatibility=st.sampled_from(["old", "new"]),
    node=st.sampled_from(["a", "b", ""]),
    stage=st.sampled_from(Stage),
)
REQUESTS = st.builds(
    SandboxRequest, claim=CLAIMS, pool=st.sampled_from(POOLS), compatibility=st.sampled_from([None, None, "new", "old"])
)


class AssignerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.enqueued: list[Key] = []
        self.assigner = Assigner(self.enqueued.append)
        self.candidates: dict[Key, Candidate] = {}
        self.taken: set[Key] = set()
        self.leases: dict[Key, Key] = {}  # sandbox by claim
        self.fetched: dict[Key, Lease] = {}  # by claim, those that ``take`` returned
        self.promised: dict[
            Key, tuple[int, SandboxRequest]
        ] = {}  # by claim, the place in line of who has not fetched its lease
        self.waiting: list[tuple[int, SandboxRequest]] = []
        self.arrivals = 0

    # --- the model ---------------------------------------------------------------------------------------------------

    def free(self, stage: Stage) -> list[Candidate]:
        held = self.taken | set(self.leases.values())
        return [candidate for key, candidate in self.candidates.items() if key not in held and candidate.stage is stage]

    def settle(self) -> None:
        """Every enqueued claim was the first to accept its sandbox, and no waiting claim accepts a free one."""
        for claim in self.enqueued:
            candidate = self.candidates[self.assigner._leases[claim].sandbox]
            assert candidate in self.free(Stage.READY)
            first = min(self.able(candidate))
            assert first[1].claim == claim
            self.waiting.remove(first)
            self.leases[claim] = candidate.sandbox
            self.promised[claim] = first
        self.enqueued.clear()
        assert not any(self.able(candidate) for candidate in self.free(Stage.READY))

    def able(self, candidate: Candidate) -> list[tuple[int, SandboxRequest]]:
        return [
            (number, request)
            for number, request in self.waiting
            if request.accepts(candidate.pool, candidate.compatibility)
        ]

    def end(self, claim: Key) -> Key:
        self.fetched.pop(claim, None)
        self.promised.pop(claim, None)
        return self.leases.pop(claim)

    def leave(self, claim: Key) -> None:
        self.waiting = [waiter for waiter in self.waiting if waiter[1].claim != claim]

    # --- what may happen ---------------------------------------------------------------------------------------------

    @rule(candidate=OFFERS)
    def update(self, candidate: Candidate) -> None:
        self.assigner.update(candidate)
        self.candidates[candidate.sandbox] = candidate
        self.settle()

    @rule(sandbox=SANDBOXES)
    def forget(self, sandbox: Key) -> None:
        self.assigner.forget(sandbox)
        self.candidates.pop(sandbox, None)
        self.taken.discard(sandbox)
        for claim in [claim for claim, held in self.leases.items() if held == sandbox]:
            place = self.promised.get(claim)
            self.end(claim)
            if place is not None:
                self.waiting.append(place)
        self.settle()

    @rule(request=REQUESTS, starting=st.booleans())
    def take(self, request: SandboxRequest, starting: bool) -> None:
        had = self.leases.get(request.claim)
        suits = had is not None and request.accepts(self.candidates[had].pool, self.candidates[had].compatibility)
        if had is not None and not suits:
            self.end(request.claim)
        lease = self.assigner.take(request, starting=starting)
        if suits:
            assert lease is not None
            assert lease.sandbox == had
        else:
            self.settle()
            self.check_choice(request, starting, lease)
        if lease is not None:
            self.leave(request.claim)
            self.leases[request.claim] = lease.sandbox
            self.fetched[request.claim] = lease
            self.promised.pop(request.claim, None)

    def check_choice(self, request: SandboxRequest, starting: bool, lease: Lease | None) -> None:
        stages = [Stage.READY, Stage.STARTING] if starting else [Stage.READY]
        for stage in stages:
            able = {
                candidate.sandbox: candidate
                for candidate in self.free(stage)
                if request.accepts(candidate.pool, candidate.compatibility)
            }
            if able:
                assert lease is not None
                chosen = able[lease.sandbox]
                nodes = Counter(
                    candidate.node for candidate in able.values() if candidate.compatibility == chosen.compatibility
                )
                assert nodes[chosen.node] == max(nodes.values())
                return
        assert lease is None

    @rule(request=REQUESTS)
    def wait(self, request: SandboxRequest) -> None:
        if request.claim not in self.leases and request not in [waiter[1] for waiter in self.waiting]:
            self.leave(request.claim)
            self.arrivals += 1
            self.waiting.append((self.arrivals, request))
        self.assigner.wait(request)
        self.settle()

    @rule(claim=CLAIMS)
    def withdraw(self, claim: Key) -> None:
        self.assigner.withdraw(claim)
        self.leave(claim)
        if claim in self.leases:
            self.end(claim)
        self.settle()

    @precondition(lambda self: self.fetched)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(sorted(self.fetched)))
        self.fetched[claim].done()
        self.taken.add(self.end(claim))
        self.settle()

    @precondition(lambda self: self.fetched)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(sorted(self.fetched)))
        lease = self.fetched[claim]
        self.end(claim)
        lease.give_back()
        lease.give_back()
        self.settle()

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def each_sandbox_has_one_lease_at_most(self) -> None:
        held = [lease.sandbox for lease in self.assigner._leases.values()]
        assert len(held) == len(set(held))
        assert {claim: lease.sandbox for claim, lease in self.assigner._leases.items()} == self.leases

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.assigner) == len(self.candidates)
        assert len(self.assigner._waiting) == len(self.waiting)

    @invariant()
    def it_is_known_what_is_on_its_way(self) -> None:
        for pool in POOLS:
            unready = [
                candidate
                for candidate in self.free(Stage.PENDING) + self.free(Stage.STARTING)
                if candidate.pool == pool
            ]
            waiting = [request for _, request in self.waiting if (request.pool, request.compatibility) == (pool, None)]
            stranger = SandboxRequest(Key("default", "stranger"), pool, None)
            assert self.assigner.is_worth_waiting(stranger) == (len(unready) > len(waiting))

    def teardown(self) -> None:
        """Whatever is free can be taken, by as many strangers, and nothing else."""
        for pool in POOLS:
            free = {candidate.sandbox for candidate in self.free(Stage.READY) if candidate.pool == pool}
            found: set[Key] = set()
            while lease := self.assigner.take(SandboxRequest(Key("default", f"stranger-{len(found)}"), pool, None)):
                found.add(lease.sandbox)
            assert found == free
        for sandbox in list(self.candidates):
            self.assigner.forget(sandbox)
        assert len(self.assigner) == 0
        assert not self.assigner._unready
        assert not self.assigner._leases


TestAssignerModel = AssignerModel.TestCase
TestAssignerModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
