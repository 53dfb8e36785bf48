"""Dispatches a review to the function that answers it."""

from __future__ import annotations

from typing import Any

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.server.auth import reviews
from sandpool.server.auth.authenticator import Authenticator
from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.registry.decoding import expect_kind, fit
from sandpool.server.request.messages import User
from sandpool.server.resources import Resource


class Reviews:
    """Answers reviews. Stores nothing."""

    def __init__(self, authenticator: Authenticator, authorizer: RbacAuthorizer, clock: Clock) -> None:
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._clock = clock

    def answer(self, user: User, resource: Resource, namespace: str, body: Any) -> Object:
        review, _ = fit(resource, expect_kind(resource, body), None, "Ignore", [])
        match resource.type.plural:
            case "tokenreviews":
                return reviews.token_review(review, self._authenticator)
            case "selfsubjectreviews":
                return reviews.self_subject_review(review, user, self._clock.now())
            case "subjectaccessreviews":
                return reviews.subject_access_review(review, self._authorizer)
            case "localsubjectaccessreviews":
                return reviews.local_subject_access_review(review, namespace, self._authorizer)
            case "selfsubjectaccessreviews":
                return reviews.self_subject_access_review(review, user, self._authorizer)
            case _:
                return reviews.self_subject_rules_review(review, user, self._authorizer)
