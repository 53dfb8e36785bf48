from __future__ import annotations

from sandpool.api import kinds
from sandpool.api.resource import ResourceType


def test_every_kind_is_listed_once() -> None:
    constants = [value for value in vars(kinds).values() if isinstance(value, ResourceType)]
    listed = [*kinds.BUILT_IN, *kinds.SANDPOOL, kinds.API_SERVICE]
    assert len(set(listed)) == len(listed)
    assert set(constants) == set(listed)


def test_names_do_not_collide_within_a_group_version() -> None:
    plurals = [(kind.api_version, kind.plural) for kind in (*kinds.BUILT_IN, *kinds.SANDPOOL)]
    assert len(set(plurals)) == len(plurals)


def test_sandbox_kinds_have_their_short_names() -> None:
    assert [(kind.group_resource, kind.short_names) for kind in kinds.SANDPOOL] == [
        ("sandboxes.agents.x-k8s.io", ("sandbox",)),
        ("sandboxtemplates.extensions.agents.x-k8s.io", ("sandboxtemplate",)),
        ("sandboxwarmpools.extensions.agents.x-k8s.io", ("swp",)),
        ("sandboxclaims.extensions.agents.x-k8s.io", ("sandboxclaim",)),
    ]
    assert all(kind.namespaced and kind.version == "v1beta1" for kind in kinds.SANDPOOL)
    assert kinds.SANDBOX_TEMPLATE.subresources == frozenset()
    assert kinds.SANDBOX_WARM_POOL.subresources == {"status", "scale"}


def test_every_subresource_has_verbs() -> None:
    for kind in (*kinds.BUILT_IN, *kinds.SANDPOOL):
        for name in kind.subresources:
            assert kinds.subresource(kind, name).verbs
    assert kinds.subresource(kinds.NODE, "proxy").kind == "NodeProxyOptions"
    assert kinds.subresource(kinds.SERVICE_ACCOUNT, "token").group == "authentication.k8s.io"
