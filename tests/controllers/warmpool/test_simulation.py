"""Plans performed in a small model with a stale cache, failing creations, and members that come and go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.api.conditions import find_condition
from sandpool.api.resource import Object
from sandpool.api.views import PodView, SandboxView, WarmPoolStatus, WarmPoolView
from sandpool.controllers.options import WarmPoolOptions
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.warmpool.members import new_member
from sandpool.controllers.warmpool.plan import Observed, Plan, PoolState, plan
from sandpool.controllers.warmpool.rollout import RolloutBounds
from sandpool.controllers.warmpool.scaling import CreationOutcome, slow_start
from sandpool.engine.expectations import Expectations

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene

START: Final = datetime.fromisoformat("2026-11-01T12:00:00Z")
BROKEN: Final = "example.com/broken"
GOOD: Final = tuple(f"example.com/image:{number}" for number in range(3))


class Time:
    def __init__(self) -> None:
        self.elapsed = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("plans never sleep")


@dataclass(frozen=True)
class Member:
    """A sandbox as it truly is."""

    object: Object  # as it was created
    image: str
    created: datetime
    version: int = 1
    ready_since: datetime | None = None
    unready_since: datetime | None = None
    claimed: bool = False
    deleting: bool = False

    @property
    def lives(self) -> bool:
        """It takes up one of the pool's places."""
        return not self.claimed

    @property
    def serves(self) -> bool:
        """A claim could have it."""
        return not self.claimed and not self.deleting and self.ready_since is not None

    def view(self) -> SandboxView:
        metadata = {
            **self.object["metadata"],
            "uid": self.object["metadata"]["name"],
            "resourceVersion": str(self.version),
            "creationTimestamp": self.created.isoformat(),
        }
        if self.deleting:
            metadata["deletionTimestamp"] = self.created.isoformat()
        if self.claimed:
            owner = {"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": "c"}
            metadata["ownerReferences"] = [{**owner, "uid": "claim-uid", "controller": True}]
        conditions = []
        since = self.ready_since or self.unready_since
        if since is not None:
            ready = str(self.ready_since is not None)
            conditions = [{"type": "Ready", "status": ready, "reason": "x", "lastTransitionTime": since.isoformat()}]
        return SandboxView.from_object({**self.object, "metadata": metadata, "status": {"conditions": conditions}})


class World:
    def __init__(self, scene: Scene, pool: WarmPoolView, given: WarmPoolOptions) -> None:
        self.scene = scene
        self.pool = pool
        self.settings = given
        self.time = Time()
        self.expectations: Expectations[str] = Expectations(self.time)
        self.state = PoolState.restored(pool)
        self.image = GOOD[0]
        self.truth: dict[str, Member] = {}
        self.cache: dict[str, Member] = {}
        self.unseen: set[str] = set()  # created, and not in the cache yet
        self.names = 0
        self.creations_fail = False
        self.has_capacity = True
        self.created = 0
        self.refused = 0
        self.warnings = 0

    # --- what happens without the controller ---------------------------------------------------------------------

    def change(self, name: str, **fields: Any) -> None:
        member = self.truth[name]
        self.truth[name] = replace(member, version=member.version + 1, **fields)

    def pick(self, names: Iterable[str], number: int) -> str | None:
        listed = sorted(names)
        return listed[number % len(listed)] if listed else None

    def start(self, number: int) -> None:
        """A member becomes ready."""
        waiting = (n for n, m in self.truth.items() if m.ready_since is None and not m.deleting and m.image != BROKEN)
        if self.has_capacity and (name := self.pick(waiting, number)):
            self.change(name, ready_since=self.time.now())

    def falter(self, number: int) -> None:
        """A member is no longer ready."""
        if name := self.pick((n for n, m in self.truth.items() if m.serves), number):
            self.change(name, ready_since=None, unready_since=self.time.now())

    def claim(self, number: int) -> None:
        if name := self.pick((n for n, m in self.truth.items() if m.serves), number):
            self.change(name, claimed=True)

    def kill(self, number: int) -> None:
        """Another client deletes a member."""
        if name := self.pick((n for n, m in self.truth.items() if not m.deleting), number):
            self.change(name, deleting=True)

    def finish(self, number: int) -> None:
        """A deletion comes to its end."""
        if name := self.pick((n for n, m in self.truth.items() if m.deleting), number):
            del self.truth[name]

    def edit(self, number: int) -> None:
        self.image = (*GOOD, BROKEN)[number % 4]

    def scale(self, number: int) -> None:
        self.pool = replace(self.pool, replicas=number % 7, generation=self.pool.generation + 1)

    def wait(self, number: int) -> None:
        seconds = (0.1, 1, 20, 100, 301)[number % 5]
        if seconds >= 20:
            self.catch_up()  # no cache lags for minutes, and expectations do not live longer than that
        self.time.elapsed += seconds

    def fail(self, number: int) -> None:
        self.creations_fail = number % 2 == 0

    def exhaust(self, number: int) -> None:
        self.has_capacity = number % 2 == 0

    def sync(self, number: int) -> None:
        """The cache receives the event of one sandbox."""
        stale = {n for n in self.truth.keys() | self.cache.keys() | self.unseen if self.is_outdated(n)}
        if name := self.pick(stale, number):
            self.hear(name)

    def catch_up(self) -> None:
        for name in self.truth.keys() | self.cache.keys() | self.unseen:
            self.hear(name)

    def is_outdated(self, name: str) -> bool:
        return name in self.unseen or self.truth.get(name) is not self.cache.get(name)

    def hear(self, name: str) -> None:
        member = self.truth.get(name)
        if name in self.unseen:
            self.unseen.remove(name)
            self.expectations.settle_creations("pool")
        if member is None:
            self.cache.pop(name, None)
        else:
            self.cache[name] = member
        if member is None or member.deleting:
            self.expectations.settle_deletion("pool", name)

    # --- the controller ----------------------------------------------------------------------------------------------

    def revision(self) -> TemplateRevision:
        return self.scene.revision(self.image)

    def observed(self) -> Observed:
        return Observed(
            pool=self.pool,
            sandboxes=[member.view() for member in self.cache.values()],
            revision=self.revision(),
            pod_of=self.pod_of,
            now=self.time.now(),
            pending_deletions=self.expectations.pending_deletions("pool"),
            expectations_met=self.expectations.satisfied("pool"),
        )

    def pod_of(self, sandbox: SandboxView) -> PodView | None:
        return self.scene.pod(sandbox.name, unschedulable=not self.has_capacity)

    def reconcile(self, number: int = 0) -> Plan:
        observed = self.observed()
        decided = plan(observed, self.settings, self.state)
        self.state = decided.state
        self.check_availability(observed, decided)
        if decided.create:
            assert self.expectations.try_expect("pool", decided.create), "created while something is outstanding"
        for deletion in (*decided.delete, *decided.discard):
            self.delete(deletion.name, deletion.resource_version)
        if decided.create:
            self.create(decided.create)
        if decided.status is not None:
            self.pool = self.scene.with_status(self.pool, decided)
        self.warnings += sum(event.type == "Warning" for event in decided.events)
        return decided

    def delete(self, name: str, version: str) -> None:
        self.expectations.expect_deletion("pool", name)
        member = self.truth.get(name)
        if member is None or str(member.version) != version:  # 404 or 409
            self.refused += 1
            self.expectations.settle_deletion("pool", name)
            return
        assert not member.claimed, "a claimed sandbox is deleted"
        self.change(name, deleting=True)

    def create(self, count: int) -> None:
        succeeded = 0
        error = ""
        for size in slow_start(count):
            if self.creations_fail:
                error = "no"
                break
            for _ in range(size):
                self.names += 1
                name = f"test-pool-{self.names:05}"
                obj = new_member(self.pool, self.revision(), name, enable_eviction=True)
                self.truth[name] = Member(obj, self.image, self.time.now())
                self.unseen.add(name)
                succeeded += 1
                self.check_population()
        self.created += succeeded
        self.expectations.settle_creations("pool", count - succeeded)
        self.state = self.state.attempted(CreationOutcome(succeeded, error), self.time.now())

    # --- what must hold ----------------------------------------------------------------------------------------------

    def check_population(self) -> None:
        """R18: at every instant, whatever the cache shows. Only making a pool smaller leaves more for a while, and then
        none is created."""
        surge = RolloutBounds.of(self.pool).surge if self.pool.strategy == "RollingUpdate" else 0
        assert sum(member.lives for member in self.truth.values()) <= self.pool.replicas + surge

    def check_availability(self, observed: Observed, decided: Plan) -> None:
        if self.pool.strategy != "RollingUpdate":
            return
        doomed = {deletion.name for deletion in decided.delete}
        ready = {
            sandbox.name for sandbox in observed.sandboxes if sandbox.ready and sandbox.controlled_by(observed.pool)
        }
        ready -= {sandbox.name for sandbox in observed.sandboxes if sandbox.deleting} | observed.pending_deletions
        needed = self.pool.replicas - RolloutBounds.of(self.pool).unavailable
        assert len(ready - doomed) >= min(len(ready), needed), "the rollout took too many"

    def settle(self) -> None:
        """Nothing happens any more but what the controller does and what follows from it."""
        self.creations_fail = False
        self.has_capacity = True
        if self.image == BROKEN:
            self.image = GOOD[0]
        for _ in range(200):
            for name in [n for n, m in self.truth.items() if m.deleting]:
                del self.truth[name]
            for number in range(len(self.truth)):
                self.start(number)
            self.catch_up()
            decided = self.reconcile()
            if not any((decided.delete, decided.discard, decided.create, decided.patches, decided.status)):
                if decided.requeue is None:
                    return
                self.time.elapsed += decided.requeue
        raise AssertionError("the pool does not come to rest")

    def check_rest(self) -> None:
        members = [member for member in self.truth.values() if member.lives]
        current = [member for member in members if member.image == self.image]
        assert len(members) == self.pool.replicas
        assert all(member.serves for member in members)
        if self.pool.strategy in ("Recreate", "RollingUpdate"):
            assert current == members
        status = self.pool.status
        assert replace(status, conditions=[]) == WarmPoolStatus(
            replicas=len(members),
            ready_replicas=sum(member.serves for member in members),
            updated_replicas=len(current),
            updated_ready_replicas=sum(member.serves for member in current),
            selector="agents.x-k8s.io/warm-pool-sandbox=59733166",
            observed_generation=self.pool.generation,
        )
        progressing = find_condition(status.conditions, "Progressing")
        available = find_condition(status.conditions, "Available")
        assert progressing is not None
        assert available is not None
        assert progressing["reason"] == ("Complete" if current == members else "OutdatedInUse")
        assert available["status"] == "True"


COMMON: Final = (World.reconcile, World.start, World.sync, World.finish, World.claim)
RARE: Final = (World.falter, World.kill, World.edit, World.scale, World.wait, World.fail, World.exhaust)
steps = st.lists(st.tuples(st.sampled_from((*COMMON, *COMMON, *RARE)), st.integers(0, 50)), min_size=15, max_size=80)
strategies = st.sampled_from(["OnReplenish", "Recreate", "RollingUpdate"])
bounds = st.none() | st.integers(0, 3) | st.sampled_from(["0%", "25%", "50%", "100%"])
shaping = st.builds(
    WarmPoolOptions,
    replenish_delay=st.sampled_from([0.0, 0.0, 5.0, None]),
    max_refill_rate=st.sampled_from([0.0, 0.0, 0.5, 3.0]),
    max_batch_size=st.sampled_from([300, 2]),
)


@settings(max_examples=150, deadline=None)
@given(
    replicas=st.integers(0, 6),
    strategy=strategies,
    max_surge=bounds,
    max_unavailable=bounds,
    shaping=shaping,
    steps=steps,
)
def test_r18_r19_pool_never_exceeds_its_size_and_reaches_quiescence(
    scene: Scene,
    replicas: int,
    strategy: str,
    max_surge: int | str | None,
    max_unavailable: int | str | None,
    shaping: WarmPoolOptions,
    steps: list[tuple[Any, int]],
) -> None:
    pool = scene.pool(replicas, strategy, maxSurge=max_surge, maxUnavailable=max_unavailable)
    world = World(scene, pool, shaping)
    for happen, number in steps:
        happen(world, number)
    world.settle()
    world.check_rest()


def filled(
    scene: Scene, strategy: str = "", replicas: int = 4, given: WarmPoolOptions | None = None, **rolling: Any
) -> World:
    world = World(scene, scene.pool(replicas, strategy, **rolling), given or WarmPoolOptions())
    world.settle()
    world.check_rest()
    return world


def run(world: World, seconds: float, step: float = 10.0) -> None:
    """Time passes, deletions finish, members become ready, the cache keeps up."""
    end = world.time.elapsed + seconds
    while world.time.elapsed < end:
        for name in [n for n, m in world.truth.items() if m.deleting]:
            del world.truth[name]
        for number in range(len(world.truth)):
            world.start(number)
        world.catch_up()
        world.reconcile()
        world.time.elapsed += step


def test_edge_21_five_reconciles_over_a_stale_list_fill_the_pool_once(scene: Scene) -> None:
    world = World(scene, scene.pool(4), WarmPoolOptions())
    for _ in range(5):
        world.reconcile()
    assert world.created == 4


def test_r12_member_claimed_between_plan_and_deletion_survives(scene: Scene) -> None:
    world = filled(scene, "Recreate")
    world.claim(0)  # the cache does not know
    world.image = GOOD[1]
    world.reconcile()
    assert world.refused == 1
    assert [member.deleting for member in world.truth.values() if member.claimed] == [False]
    world.settle()
    world.check_rest()


def test_r20_edge_23_deleting_a_deleted_member_does_not_block_the_pool(scene: Scene) -> None:
    world = filled(scene)
    world.scale(2)
    for name in list(world.truth):
        del world.truth[name]  # the cache does not know
    world.reconcile()
    assert world.refused == 2
    assert world.expectations.satisfied("pool")
    world.settle()
    world.check_rest()


def test_r21_an_hour_without_capacity_creates_nothing(scene: Scene) -> None:
    world = filled(scene)
    world.has_capacity = False
    for _ in range(2):
        world.claim(0)
    run(world, 3600)
    assert world.created == 4 + 2
    assert world.warnings == 1
    world.settle()
    world.check_rest()


def test_r27_failing_creation_is_retried_rarely_and_recovers(scene: Scene) -> None:
    world = World(scene, scene.pool(4), WarmPoolOptions())
    world.creations_fail = True
    attempts = 0
    for _ in range(3600):
        attempts += world.reconcile().create > 0
        world.time.elapsed += 1
    assert 10 <= attempts <= 25
    world.settle()
    world.check_rest()
    assert world.state.refill_state.breaker.failures == 0


def test_rollout_replaces_all_members_within_its_bounds(scene: Scene) -> None:
    world = filled(scene, "RollingUpdate", replicas=6, maxSurge=1, maxUnavailable=0)
    world.image = GOOD[1]
    run(world, 600)
    world.settle()
    world.check_rest()
    assert world.created == 12


def test_broken_template_keeps_the_old_members_and_is_reported(scene: Scene) -> None:
    world = filled(scene, "RollingUpdate", replicas=6, maxSurge=1, maxUnavailable=2)
    world.image = BROKEN
    run(world, 3600)
    assert sum(member.serves for member in world.truth.values()) == 4
    assert len(world.truth) <= 7
    progressing = find_condition(world.pool.status.conditions, "Progressing")
    assert progressing is not None
    assert progressing["reason"] == "ProgressDeadlineExceeded"
    assert progressing["message"] == (
        'sandboxes of template "test-template" do not become ready within 5m0s; '
        "the rollout is stopped and 4 sandboxes of the former template kept"
    )
    world.image = GOOD[2]
    run(world, 120)
    world.settle()
    world.check_rest()


def test_r28_pool_scaled_down_and_up_again_is_complete(scene: Scene) -> None:
    world = filled(scene, replicas=6)
    world.scale(1)
    world.reconcile()
    world.scale(6)
    world.settle()
    world.check_rest()
