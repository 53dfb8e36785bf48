"""Role, ClusterRole, RoleBinding and ClusterRoleBinding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandpool.api.causes import Cause, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import each, fill_empty, inside
from sandpool.server.kinds.label_selectors import validate_label_selector
from sandpool.server.kinds.strategy import KindStrategy

GROUP: Final = "rbac.authorization.k8s.io"
_SUBJECT_KINDS: Final = ("ServiceAccount", "User", "Group")


class RoleStrategy(KindStrategy):
    """The strategy of Role. A ClusterRole may also name non-resource URLs and aggregate other roles."""

    name_format = "path"
    allow_create_on_update = True

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        return list(_validate_rules(new, old, namespaced=True))


class ClusterRoleStrategy(KindStrategy):
    name_format = "path"
    allow_create_on_update = True

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        return [*_validate_rules(new, old, namespaced=False), *_validate_aggregation(new)]


class RoleBindingStrategy(KindStrategy):
    """The strategy of RoleBinding or, with ``namespaced=False``, of ClusterRoleBinding."""

    name_format = "path"
    allow_create_on_update = True

    def __init__(self, *, namespaced: bool) -> None:
        self.namespaced = namespaced
        self.role_kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = inside(obj, "roleRef", lambda role: fill_empty(role, {"apiGroup": GROUP}))
        return inside(obj, "subjects", lambda subjects: each(subjects, _default_subject))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        role = new["roleRef"]
        found = list(self._validate_role(role))
        for index, subject in enumerate(new.get("subjects") or ()):
            found += _validate_subject(subject, f"subjects[{index}]", namespaced=self.namespaced)
        if old is not None and role != old["roleRef"]:
            found.append(invalid("roleRef", role, "cannot change roleRef"))
        return found

    def _validate_role(self, role: Object) -> Iterator[Cause]:
        if role.get("apiGroup") != GROUP:
            yield not_supported("roleRef.apiGroup", role.get("apiGroup") or "", (GROUP,))
        if role.get("kind") not in self.role_kinds:
            yield not_supported("roleRef.kind", role.get("kind") or "", self.role_kinds)
        name = role.get("name")
        if not name:
            yield required("roleRef.name")
        else:
            yield from (invalid("roleRef.name", name, why) for why in names.path_segment(name))


def _validate_rules(new: Object, old: Object | None, *, namespaced: bool) -> Iterator[Cause]:
    rules = new.get("rules") or ()
    if old is not None and rules is old.get("rules"):
        return
    for index, rule in enumerate(rules):
        yield from _validate_rule(rule, f"rules[{index}]", namespaced=namespaced)


def _validate_rule(rule: Object, path: str, *, namespaced: bool) -> Iterator[Cause]:
    if not rule.get("verbs"):
        yield required(f"{path}.verbs", "verbs must contain at least one value")
    if urls := rule.get("nonResourceURLs"):
        if namespaced:
            why = "namespaced rules cannot apply to non-resource URLs"
            yield invalid(f"{path}.nonResourceURLs", urls, why)
        if any(rule.get(field) for field in ("apiGroups", "resources", "resourceNames")):
            why = "rules cannot apply to both regular resources and non-resource URLs"
            yield invalid(f"{path}.nonResourceURLs", urls, why)
        return
    if not rule.get("apiGroups"):
        yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
    if not rule.get("resources"):
        yield required(f"{path}.resources", "resource rules must supply at least one resource")


def _validate_aggregation(role: Object) -> Iterator[Cause]:
    aggregation = role.get("aggregationRule")
    if aggregation is None:
        return
    path, selectors = "aggregationRule.clusterRoleSelectors", aggregation.get("clusterRoleSelectors") or ()
    if not selectors:
        yield required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil")
    for index, selector in enumerate(selectors):
        wrong = list(validate_label_selector(selector, f"{path}[{index}]"))
        yield from wrong
        if wrong:
            yield invalid(f"{path}[{index}]", None, "invalid label selector.")


def _default_subject(subject: Object) -> Object:
    return fill_empty(subject, {"apiGroup": GROUP}) if subject.get("kind") in ("User", "Group") else subject


def _validate_subject(subject: Object, path: str, *, namespaced: bool) -> Iterator[Cause]:
    kind, name, group = subject.get("kind"), subject.get("name"), subject.get("apiGroup") or ""
    if not name:
        yield required(f"{path}.name")
    if kind == "ServiceAccount":
        yield from (invalid(f"{path}.name", name, why) for why in (names.subdomain(name) if name else ()))
        if group:
            yield not_supported(f"{path}.apiGroup", group, ("",))
        if not namespaced and not subject.get("namespace"):
            yield required(f"{path}.namespace")
    elif kind not in _SUBJECT_KINDS:
        yield not_supported(f"{path}.kind", kind or "", _SUBJECT_KINDS)
    elif group != GROUP:
        yield not_supported(f"{path}.apiGroup", group, (GROUP,))
