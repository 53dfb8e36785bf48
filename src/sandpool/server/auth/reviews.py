"""The review APIs: questions about identity and permission, asked by creating an object.

Each function returns the object with the result in its status; nothing is stored.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

import orjson

from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import timestamp
from sandpool.kube.errors import BadRequest, Cause, invalid
from sandpool.server.auth.authenticator import Authenticator
from sandpool.server.auth.rbac import Authorizer, Decision
from sandpool.server.auth.rules import Rule
from sandpool.server.auth.service_accounts import TokenError
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import RequestInfo

# kube-apiserver omits the kind in errors about invalid access reviews.
_UNNAMED = ResourceType("authorization.k8s.io", "v1", "", "")


class RuleLister(Protocol):
    def rules_for(self, user: User, namespace: str) -> list[Rule]: ...


def token_review(review: Object, authenticator: Authenticator) -> Object:
    """TokenReview: the user of a token."""
    spec = review.get("spec") or {}
    token = spec.get("token") or ""
    if not token:
        raise BadRequest("token is required for TokenReview in authentication")
    try:
        verified = authenticator.verify(token, spec.get("audiences") or ())
    except TokenError as error:
        reason = str(error)
        if reason != "invalid bearer token":
            reason = f"[invalid bearer token, {reason}]"
        return {**review, "status": {"user": {}, "error": reason}}
    status = {"authenticated": True, "user": user_info(verified.user), "audiences": list(verified.audiences)}
    return {**review, "status": status}


def self_subject_review(review: Object, user: User, now: datetime) -> Object:
    """SelfSubjectReview: the user of this request."""
    metadata = {**(review.get("metadata") or {}), "creationTimestamp": timestamp(now)}
    return {**review, "metadata": metadata, "status": {"userInfo": user_info(user)}}


def subject_access_review(review: Object, authorizer: Authorizer) -> Object:
    """SubjectAccessReview: whether a user may do something."""
    spec = review.get("spec") or {}
    _refuse([*_attribute_causes(spec), *_subject_causes(spec), *_metadata_causes(review)])
    return {**review, "status": _status(authorizer.authorize(_subject(spec), _asked(spec)))}


def local_subject_access_review(review: Object, namespace: str, authorizer: Authorizer) -> Object:
    """LocalSubjectAccessReview: whether a user may do something in this namespace."""
    spec = review.get("spec") or {}
    causes = [*_attribute_causes(spec), *_subject_causes(spec), *_metadata_causes(review, "namespace")]
    attributes = spec.get("resourceAttributes")
    if attributes is not None and attributes.get("namespace", "") != namespace:
        found = attributes.get("namespace", "")
        causes.append(_cause("spec.resourceAttributes.namespace", found, "must match metadata.namespace"))
    if spec.get("nonResourceAttributes") is not None:
        shown = _go_names(spec["nonResourceAttributes"])
        causes.append(_cause("spec.nonResourceAttributes", shown, "disallowed on this kind of request"))
    _refuse(causes)
    metadata = {**(review.get("metadata") or {}), "namespace": namespace}
    status = _status(authorizer.authorize(_subject(spec), _asked(spec)))
    return {**review, "metadata": metadata, "status": status}


def self_subject_access_review(review: Object, user: User, authorizer: Authorizer) -> Object:
    """SelfSubjectAccessReview: whether the user of this request may do something."""
    spec = review.get("spec") or {}
    _refuse([*_attribute_causes(spec), *_metadata_causes(review)])
    return {**review, "status": _status(authorizer.authorize(user, _asked(spec)))}


def self_subject_rules_review(review: Object, user: User, authorizer: RuleLister) -> Object:
    """SelfSubjectRulesReview: the rules of the user in a namespace. As in Kubernetes, the spec is not returned."""
    namespace = (review.get("spec") or {}).get("namespace")
    if not namespace:
        raise BadRequest("no namespace on request")
    resource_rules: list[Object] = []
    url_rules: list[Object] = []
    for rule in dict.fromkeys(authorizer.rules_for(user, namespace)):
        if rule.resources:
            shown = {
                "verbs": list(rule.verbs),
                "apiGroups": list(rule.groups),
                "resources": list(rule.resources),
                "resourceNames": list(rule.names),
            }
            resource_rules.append({key: value for key, value in shown.items() if value})
        if rule.urls:
            url_rules.append({"verbs": list(rule.verbs), "nonResourceURLs": list(rule.urls)})
    return {
        "kind": review["kind"],
        "apiVersion": review["apiVersion"],
        "metadata": {},
        "spec": {},
        "status": {"resourceRules": resource_rules, "nonResourceRules": url_rules, "incomplete": False},
    }


def user_info(user: User) -> Object:
    info: Object = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info


def _status(decision: Decision) -> Object:
    status: Object = {"allowed": decision.allowed}
    if decision.reason:
        status["reason"] = decision.reason
    return status


def _subject(spec: Object) -> User:
    extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
    return User(spec.get("user") or "", tuple(spec.get("groups") or ()), spec.get("uid") or "", extra)


def _asked(spec: Object) -> RequestInfo:
    attributes = spec.get("resourceAttributes")
    if attributes is None:
        attributes = spec["nonResourceAttributes"]
        return RequestInfo(attributes.get("path", ""), attributes.get("verb", ""))
    return RequestInfo(
        path="",
        verb=attributes.get("verb", ""),
        is_resource=True,
        group=attributes.get("group", ""),
        version=attributes.get("version", ""),
        resource=attributes.get("resource", ""),
        subresource=attributes.get("subresource", ""),
        namespace=attributes.get("namespace", ""),
        name=attributes.get("name", ""),
    )


def _attribute_causes(spec: Object) -> list[Cause]:
    attributes, url_attributes = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if attributes is not None and url_attributes is not None:
        shown = _go_names(url_attributes)
        return [
            _cause("spec.nonResourceAttributes", shown, "cannot be specified in combination with resourceAttributes")
        ]
    if attributes is None and url_attributes is None:
        problem = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [_cause("spec.resourceAttributes", None, problem)]
    return []


def _subject_causes(spec: Object) -> list[Cause]:
    if spec.get("user") or spec.get("groups"):
        return []
    return [_cause("spec.user", "", "at least one of user or group must be specified")]


def _metadata_causes(review: Object, *allowed: str) -> list[Cause]:
    metadata = review.get("metadata") or {}
    if all(key in (*allowed, "managedFields", "creationTimestamp") or not value for key, value in metadata.items()):
        return []
    problem = "must be empty" + (f" except for {allowed[0]}" if allowed else "")
    return [_cause("metadata", metadata, problem)]


def _cause(field: str, value: Any, problem: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {orjson.dumps(value).decode()}: {problem}")


def _go_names(attributes: Object) -> Object:
    """kube-apiserver prints this one type with the names of its Go fields."""
    return {"Path": attributes.get("path", ""), "Verb": attributes.get("verb", "")}


def _refuse(causes: list[Cause]) -> None:
    if causes:
        raise invalid(_UNNAMED, "", causes)
