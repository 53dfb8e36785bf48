"""Sandbox and SandboxTemplate: custom resources whose clients are warned of volumes that no container mounts."""

from __future__ import annotations

from collections.abc import Sequence

from sandpool.api.kinds import SANDBOX, SANDBOX_TEMPLATE
from sandpool.api.resource import Object, ResourceType
from sandpool.api.sandbox_spec import unmounted_volumes
from sandpool.server.kinds.custom_resources import CustomResourceStrategy


class SandboxSpecStrategy(CustomResourceStrategy):
    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Files that are written where a user believes the volume to be are lost with the sandbox.

        An object with owners was made by a controller, of a template whose author was warned."""
        if new["metadata"].get("ownerReferences"):
            return ()
        spec = new["spec"]
        if old is not None and spec is old.get("spec"):
            return ()
        names = unmounted_volumes(spec.get("podTemplate") or {}, spec.get("volumeClaimTemplates") or ())
        return [f'volume "{name}" is mounted in no container' for name in names]


def strategy_of(kind: ResourceType) -> type[CustomResourceStrategy]:
    """The strategy of a custom resource."""
    with_sandbox_spec = (SANDBOX.group_resource, SANDBOX_TEMPLATE.group_resource)
    return SandboxSpecStrategy if kind.group_resource in with_sandbox_spec else CustomResourceStrategy
