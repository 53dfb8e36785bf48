"""The assigner against a model that keeps plain lists and looks through all of them every time."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandpool.controllers.claim.assigner import Assigner, Lease, Offer, Stage
from sandpool.controllers.claim.free_list import Key
from sandpool.controllers.claim.waiting import Wish

POOLS = (("default", "p"), ("default", "q"))
SANDBOXES = st.integers(0, 7).map(lambda number: ("default", f"s{number}"))
CLAIMS = st.integers(0, 4).map(lambda number: ("default", f"c{number}"))
OFFERS = st.builds(
    Offer,
    sandbox=SANDBOXES,
    uid=st.just("1"),
    pool=st.sampled_from(POOLS),
    compatibility=st.sampled_from(["old", "new"]),
    node=st.sampled_from(["a", "b", ""]),
    stage=st.sampled_from(Stage),
)
WISHES = st.builds(
    Wish, claim=CLAIMS, pool=st.sampled_from(POOLS), compatibility=st.sampled_from([None, None, "new", "old"])
)


class AssignerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.woken: list[Key] = []
        self.assigner = Assigner(self.woken.append)
        self.offers: dict[Key, Offer] = {}
        self.taken: set[Key] = set()
        self.leases: dict[Key, Key] = {}  # sandbox by claim
        self.fetched: dict[Key, Lease] = {}  # by claim, those that ``take`` returned
        self.promised: dict[Key, tuple[int, Wish]] = {}  # by claim, the place in line of who has not fetched its lease
        self.waiting: list[tuple[int, Wish]] = []
        self.arrivals = 0

    # --- the model ---------------------------------------------------------------------------------------------------

    def free(self, stage: Stage) -> list[Offer]:
        held = self.taken | set(self.leases.values())
        return [offer for key, offer in self.offers.items() if key not in held and offer.stage is stage]

    def settle(self) -> None:
        """Whoever was woken was the first who waits for what it got, and nothing is left that somebody waits for."""
        for claim in self.woken:
            offer = self.offers[self.assigner._leases[claim].sandbox]
            assert offer in self.free(Stage.READY)
            first = min(self.able(offer))
            assert first[1].claim == claim
            self.waiting.remove(first)
            self.leases[claim] = offer.sandbox
            self.promised[claim] = first
        self.woken.clear()
        assert not any(self.able(offer) for offer in self.free(Stage.READY))

    def able(self, offer: Offer) -> list[tuple[int, Wish]]:
        return [(number, wish) for number, wish in self.waiting if wish.accepts(offer.pool, offer.compatibility)]

    def end(self, claim: Key) -> Key:
        self.fetched.pop(claim, None)
        self.promised.pop(claim, None)
        return self.leases.pop(claim)

    def leave(self, claim: Key) -> None:
        self.waiting = [waiter for waiter in self.waiting if waiter[1].claim != claim]

    # --- what may happen ---------------------------------------------------------------------------------------------

    @rule(offer=OFFERS)
    def offer(self, offer: Offer) -> None:
        self.assigner.offer(offer)
        self.offers[offer.sandbox] = offer
        self.settle()

    @rule(sandbox=SANDBOXES)
    def forget(self, sandbox: Key) -> None:
        self.assigner.forget(sandbox)
        self.offers.pop(sandbox, None)
        self.taken.discard(sandbox)
        for claim in [claim for claim, held in self.leases.items() if held == sandbox]:
            place = self.promised.get(claim)
            self.end(claim)
            if place is not None:
                self.waiting.append(place)
        self.settle()

    @rule(wish=WISHES, booting=st.booleans())
    def take(self, wish: Wish, booting: bool) -> None:
        had = self.leases.get(wish.claim)
        suits = had is not None and wish.accepts(self.offers[had].pool, self.offers[had].compatibility)
        if had is not None and not suits:
            self.end(wish.claim)
        lease = self.assigner.take(wish, booting=booting)
        if suits:
            assert lease is not None
            assert lease.sandbox == had
        else:
            self.settle()
            self.check_choice(wish, booting, lease)
        if lease is not None:
            self.leave(wish.claim)
            self.leases[wish.claim] = lease.sandbox
            self.fetched[wish.claim] = lease
            self.promised.pop(wish.claim, None)

    def check_choice(self, wish: Wish, booting: bool, lease: Lease | None) -> None:
        stages = [Stage.READY, Stage.BOOTING] if booting else [Stage.READY]
        for stage in stages:
            able = {offer.sandbox: offer for offer in self.free(stage) if wish.accepts(offer.pool, offer.compatibility)}
            if able:
                assert lease is not None
                chosen = able[lease.sandbox]
                nodes = Counter(offer.node for offer in able.values() if offer.compatibility == chosen.compatibility)
                assert nodes[chosen.node] == max(nodes.values())
                return
        assert lease is None

    @rule(wish=WISHES)
    def wait(self, wish: Wish) -> None:
        if wish.claim not in self.leases and wish not in [waiter[1] for waiter in self.waiting]:
            self.leave(wish.claim)
            self.arrivals += 1
            self.waiting.append((self.arrivals, wish))
        self.assigner.wait(wish)
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
        assert len(self.assigner) == len(self.offers)
        assert len(self.assigner._waiting) == len(self.waiting)

    @invariant()
    def it_is_known_what_is_on_its_way(self) -> None:
        for pool in POOLS:
            unready = [offer for offer in self.free(Stage.COMING) + self.free(Stage.BOOTING) if offer.pool == pool]
            waiting = [wish for _, wish in self.waiting if (wish.pool, wish.compatibility) == (pool, None)]
            stranger = Wish(("default", "stranger"), pool, None)
            assert self.assigner.is_worth_waiting(stranger) == (len(unready) > len(waiting))

    def teardown(self) -> None:
        """Whatever is free can be taken, by as many strangers, and nothing else."""
        for pool in POOLS:
            free = {offer.sandbox for offer in self.free(Stage.READY) if offer.pool == pool}
            found: set[Key] = set()
            while lease := self.assigner.take(Wish(("default", f"stranger-{len(found)}"), pool, None)):
                found.add(lease.sandbox)
            assert found == free
        for sandbox in list(self.offers):
            self.assigner.forget(sandbox)
        assert len(self.assigner) == 0
        assert not self.assigner._unready
        assert not self.assigner._leases


TestAssignerModel = AssignerModel.TestCase
TestAssignerModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
