"""What a plan reads. A change of it wakes the pool, and makes void what was decided before.

What a pass decides is not done at once: its requests wait for their turn. A member that was not claimed then may be
claimed now, a former template may be the current one again. And a member changes in ways that no plan reads, whenever
its status is written; so the version that a delete names to be refused if it comes too late would be an old one, and
the delete refused for nothing. That is why a delete is looked at again when its turn has come: ``confirmed`` is the
delete of the member as it is now, or nothing if the plan might be another one. Then the same change has woken the pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandpool.api.conditions import FINISHED
from sandpool.api.views import SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.informers import Caches, key_of
from sandpool.controllers.revision import TemplateRevision, TemplateRevisions
from sandpool.controllers.warmpool.members import deletion
from sandpool.controllers.writer import Delete
from sandpool.engine.cache.store import Key


def pool_fields(pool: WarmPoolView) -> tuple[object, ...]:
    return pool.uid, pool.generation, pool.deleting


def template_fields(template: TemplateView) -> tuple[object, ...]:
    return template.uid, template.generation


def member_fields(sandbox: SandboxView) -> tuple[object, ...]:
    """What a plan reads of a member, its resource version aside: that changes with everything."""
    return (
        sandbox.uid,
        sandbox.owner,
        sandbox.deleting,
        sandbox.labels,
        sandbox.generation,
        sandbox.ready,
        sandbox.status.reason(FINISHED),
    )


@dataclass(frozen=True, slots=True)
class DecisionSnapshot:
    """On what a pass has decided, to be compared with how things are when something is done about it."""

    caches: Caches
    revisions: TemplateRevisions
    pool: WarmPoolView
    revision: TemplateRevision | None
    sandboxes: Mapping[str, SandboxView]  # by UID

    def confirmed(self, delete: Delete) -> Delete | None:
        """The same for the sandbox as it is now; None if anything has changed that the decision may depend on."""
        pool = self.caches.pools.get(key_of(self.pool))
        if pool is None or pool_fields(pool) != pool_fields(self.pool):
            return None
        if self.revisions.of(pool.namespace, pool.template) is not self.revision:
            return None
        sandbox = self.caches.sandboxes.get(Key(pool.namespace, delete.name))
        if sandbox is None or member_fields(sandbox) != member_fields(self.sandboxes[delete.uid]):
            return None
        return deletion(sandbox)
