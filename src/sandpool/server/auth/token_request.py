"""TokenRequest: issues a token for a service account (``kubectl create token``)."""

from __future__ import annotations

from typing import Any

import orjson

from sandpool.api.kinds import NODE, POD, SECRET
from sandpool.api.resource import Object, ResourceType
from sandpool.engine.clock import timestamp
from sandpool.kube.errors import BadRequest, Cause, Conflict, invalid, not_found
from sandpool.server.auth.service_accounts import ServiceAccountTokens

TOKEN_REQUEST = ResourceType("authentication.k8s.io", "v1", "TokenRequest", "tokenrequests")
_DEFAULT_SECONDS = 3600
_LEAST_SECONDS = 600
_MOST_SECONDS = 1 << 32
_BINDABLE = {"Pod": POD, "Secret": SECRET, "Node": NODE}


def token_request(request: Object, service_account: Object, tokens: ServiceAccountTokens) -> Object:
    """Return the request with the token in its status. ``service_account`` is the stored account that the URL names."""
    account, metadata = service_account["metadata"], request.get("metadata") or {}
    name, namespace = account["name"], account["namespace"]
    _must_match("name", metadata, name, name)
    _must_match("namespace", metadata, namespace, name)
    if metadata.get("uid") and metadata["uid"] != account["uid"]:
        raise _conflict(
            "TokenRequest.authentication.k8s.io",
            name,
            f"the UID in the token request ({metadata['uid']}) does not match the UID of the service account "
            f"({account['uid']})",
        )
    spec = request.get("spec") or {}
    seconds = spec.get("expirationSeconds")
    seconds = _DEFAULT_SECONDS if seconds is None else seconds
    if seconds < _LEAST_SECONDS:
        raise _bad_field("", "spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    if seconds > _MOST_SECONDS:
        raise _bad_field("", "spec.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    audiences = spec.get("audiences") or [tokens.issuer]
    reference = spec.get("boundObjectRef")
    bound = _find_bound(reference, name, namespace, tokens) if reference else None
    token, expires = tokens.issue(service_account, audiences, seconds, bound=bound)
    return {
        "kind": "TokenRequest",
        "apiVersion": TOKEN_REQUEST.api_version,
        "metadata": {
            **metadata,
            "name": name,
            "namespace": namespace,
            "uid": account["uid"],
            "creationTimestamp": timestamp(tokens.now()),
        },
        "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": reference},
        "status": {"token": token, "expirationTimestamp": timestamp(expires)},
    }


def _find_bound(reference: Object, account: str, namespace: str, tokens: ServiceAccountTokens) -> Object:
    kind, name = reference.get("kind", ""), reference.get("name", "")
    group, _, version = (reference.get("apiVersion") or "").rpartition("/")
    type = _BINDABLE.get(kind)
    if group or type is None:
        raise BadRequest(f"cannot bind token to object of type {group}/{version}, Kind={kind}")
    found = tokens.find(kind, namespace if type.namespaced else "", name)
    if found is None:
        raise not_found(type, name)
    if kind == "Pod" and (found.get("spec") or {}).get("serviceAccountName") != account:
        raise BadRequest(
            f'cannot bind token for serviceaccount "{account}" to pod running with different serviceaccount name.'
        )
    if reference.get("uid") and reference["uid"] != found["metadata"]["uid"]:
        raise _conflict(
            kind,
            name,
            f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
            "The object might have been deleted and then recreated",
        )
    return {**found, "kind": kind}


def _must_match(field: str, metadata: Object, expected: str, name: str) -> None:
    given = metadata.get(field)
    if given and given != expected:
        raise _bad_field(name, f"metadata.{field}", given, f"must match the service account {field} if specified")


def _bad_field(name: str, field: str, value: Any, problem: str) -> Exception:
    shown = orjson.dumps(value).decode()
    return invalid(TOKEN_REQUEST, name, [Cause(field, "FieldValueInvalid", f"Invalid value: {shown}: {problem}")])


def _conflict(subject: str, name: str, why: str) -> Conflict:
    return Conflict(f'Operation cannot be fulfilled on {subject} "{name}": {why}', details={"name": name})
