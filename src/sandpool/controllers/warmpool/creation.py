"""The Sandbox a pool creates."""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.labels import (
    CREATED_BY,
    CREATED_BY_CONTROLLER,
    LAUNCH_TYPE,
    LAUNCH_WARM,
    POD_TEMPLATE_HASH,
    SAFE_TO_EVICT,
    TEMPLATE_HASH,
    WARM_POOL,
)
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.api.views import WarmPoolView, controller_reference
from sandpool.controllers.revision import TemplateRevision, new_sandbox

_EVICTABLE: Final = {SAFE_TO_EVICT: "true"}


def new_member(pool: WarmPoolView, revision: TemplateRevision, name: str, *, enable_eviction: bool) -> Object:
    """A member with a name made up by the caller (``names.generate_name`` with the prefix ``<pool>-``).

    ``enable_eviction`` lets the cluster autoscaler remove the pod, which nobody uses yet, unless the template says
    anything about that itself. It is said in the metadata of the Sandbox, from where it reaches the pod as long as a
    pool owns it: what a claim has to take back is then no change of the spec.
    """
    own = {
        WARM_POOL: name_hash(pool.name),
        POD_TEMPLATE_HASH: revision.pod_template_hash,
        TEMPLATE_HASH: revision.hash,
    }
    said = (revision.spec["podTemplate"].get("metadata") or {}).get("annotations") or {}
    return new_sandbox(
        revision,
        namespace=pool.namespace,
        name=name,
        owner=controller_reference(SANDBOX_WARM_POOL, pool),
        labels={**own, LAUNCH_TYPE: LAUNCH_WARM, CREATED_BY: CREATED_BY_CONTROLLER},
        annotations=_EVICTABLE if enable_eviction and SAFE_TO_EVICT not in said else None,
        pod_labels=own,
    )
