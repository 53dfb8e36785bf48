from __future__ import annotations

import asyncio

import pytest

from sandpool.api.kinds import SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW
from sandpool.api.resource import Object, ResourceType
from sandpool.kube.client import Client
from sandpool.kube.errors import ServiceUnavailable
from sandpool.router.authorization import Authorizer, ScopedTokenAuthorizer, TokenReviewAuthorizer, TokenReviewOptions
from sandpool.router.destination import Destination, RequestRejected
from sandpool.router.tokens import TokenScope, TokenSigner
from sandpool.testing.clock import ManualClock

BOX = Destination("default", "box", 8888, 60.0)


async def refused(guard: Authorizer, authorization: str, wanted: Destination = BOX, address: str = "192.0.2.1") -> int:
    """The status of the refusal; 0 if it passes."""
    try:
        pending = guard(authorization, wanted, address)
        if pending is not None:
            await pending
    except RequestRejected as refusal:
        return refusal.status
    return 0


class Reviewer(Client):
    """An API server that knows the token ``good`` of a user with access to the sandbox ``box``."""

    def __init__(self) -> None:
        self.asked: list[Object] = []  # specs of TokenReviews
        self.access: list[Object] = []  # specs of SubjectAccessReviews
        self.works = True
        self.all_are_valid = False

    async def create(self, type: ResourceType, object: Object, *args: object, **kwargs: object) -> Object:
        spec = object["spec"]
        if not self.works:
            raise ServiceUnavailable("not now")
        if type == SUBJECT_ACCESS_REVIEW:
            self.access.append(spec)
            return {**object, "status": {"allowed": spec["resourceAttributes"]["name"] == "box"}}
        assert type == TOKEN_REVIEW
        self.asked.append(spec)
        is_valid = spec["token"] == "good" or self.all_are_valid
        name = "ann" if spec["token"] == "good" else spec["token"]
        user = {"username": name, "groups": ["team"], "uid": "7", "extra": {"scope": ["x"]}}
        return {**object, "status": {"authenticated": is_valid, "user": user}}


class TestScopedTokens:
    async def test_token_is_valid_for_one_sandbox_until_it_expires(self) -> None:
        clock = ManualClock()
        tokens = TokenSigner(b"x" * 32)
        guard = ScopedTokenAuthorizer(tokens, clock)
        until = int(clock.now().timestamp()) + 60
        token = f"Bearer {tokens.make(TokenScope('default', ('box',), until))}"
        assert await refused(guard, token) == 0
        assert await refused(guard, token, Destination("default", "other", 8888, 60.0)) == 403
        assert await refused(guard, token, Destination("elsewhere", "box", 8888, 60.0)) == 403
        assert await refused(guard, "") == 401
        await clock.advance(60)
        assert await refused(guard, token) == 401

    async def test_address_header_does_not_affect_authorization(self) -> None:
        tokens = TokenSigner(b"x" * 32)
        token = tokens.make(TokenScope("default", ("box",), 1 << 40))
        guard = ScopedTokenAuthorizer(tokens, ManualClock())
        assert await refused(guard, f"Bearer {token}", Destination("default", "box", 8888, 60.0, hint="10.1.1.1")) == 0


class TestTokenReviews:
    async def test_user_needs_access_to_the_sandbox(self) -> None:
        reviewer = Reviewer()
        guard = TokenReviewAuthorizer(reviewer, ManualClock())
        other = Destination("default", "other", 8888, 60.0)
        for _ in range(3):
            assert await refused(guard, "Bearer good") == 0
            assert await refused(guard, "Bearer good", other) == 403
        assert len(reviewer.asked) == 1, "the user is cached"
        assert [each["resourceAttributes"]["name"] for each in reviewer.access] == ["box", "other"], "so are decisions"
        assert reviewer.access[0] == {
            "user": "ann",
            "groups": ["team"],
            "uid": "7",
            "extra": {"scope": ["x"]},
            "resourceAttributes": {
                "group": "agents.x-k8s.io",
                "version": "v1beta1",
                "resource": "sandboxes",
                "subresource": "proxy",
                "verb": "create",
                "namespace": "default",
                "name": "box",
            },
        }

    async def test_cached_decision_needs_no_await(self) -> None:
        guard = TokenReviewAuthorizer(Reviewer(), ManualClock())
        assert await refused(guard, "Bearer good") == 0
        assert guard("Bearer good", BOX, "192.0.2.1") is None

    async def test_access_decisions_expire_and_are_bounded(self) -> None:
        clock, reviewer = ManualClock(), Reviewer()
        guard = TokenReviewAuthorizer(reviewer, clock, TokenReviewOptions(lifetime=30, max_entries=2))
        for name in ("a", "b", "c", "a"):
            await refused(guard, "Bearer good", Destination("default", name, 8888, 60.0))
        assert len(reviewer.access) == 4
        await clock.advance(30)
        await refused(guard, "Bearer good", Destination("default", "a", 8888, 60.0))
        assert len(reviewer.access) == 5

    async def test_access_is_not_checked_if_switched_off(self) -> None:
        reviewer = Reviewer()
        guard = TokenReviewAuthorizer(reviewer, ManualClock(), TokenReviewOptions(check_access=False))
        assert await refused(guard, "Bearer good", Destination("default", "other", 8888, 60.0)) == 0
        assert not reviewer.access

    async def test_token_must_be_known_to_the_api_server(self) -> None:
        guard = TokenReviewAuthorizer(Reviewer(), ManualClock())
        assert await refused(guard, "Bearer good") == 0
        assert await refused(guard, "Bearer bad") == 401

    @pytest.mark.parametrize(("required", "status"), [(True, 401), (False, 0)])
    async def test_request_without_a_token(self, required: bool, status: int) -> None:
        reviewer = Reviewer()
        assert (
            await refused(TokenReviewAuthorizer(reviewer, ManualClock(), TokenReviewOptions(required=required)), "")
            == status
        )
        assert not reviewer.asked

    async def test_review_is_cached(self) -> None:
        clock, reviewer = ManualClock(), Reviewer()
        guard = TokenReviewAuthorizer(reviewer, clock, TokenReviewOptions(lifetime=30))
        for _ in range(5):
            await refused(guard, "Bearer bad")
        assert len(reviewer.asked) == 1
        await clock.advance(30)
        await refused(guard, "Bearer bad")
        assert len(reviewer.asked) == 2

    async def test_failed_review_is_cached_for_a_shorter_time(self) -> None:
        clock, reviewer = ManualClock(), Reviewer()
        guard = TokenReviewAuthorizer(reviewer, clock, TokenReviewOptions(lifetime=30))
        reviewer.works = False
        assert await refused(guard, "Bearer good") == 500
        reviewer.works = True
        assert await refused(guard, "Bearer good") == 500
        await clock.advance(10)
        assert await refused(guard, "Bearer good") == 0

    async def test_cache_of_reviews_is_bounded(self) -> None:
        reviewer = Reviewer()
        guard = TokenReviewAuthorizer(reviewer, ManualClock(), TokenReviewOptions(max_entries=2))
        for token in ("1", "2", "3", "1"):
            await refused(guard, f"Bearer {token}")
        assert [each["token"] for each in reviewer.asked] == ["1", "2", "3", "1"]

    async def test_review_names_the_audiences(self) -> None:
        reviewer = Reviewer()
        await refused(
            TokenReviewAuthorizer(reviewer, ManualClock(), TokenReviewOptions(audiences=("router",))), "Bearer good"
        )
        assert reviewer.asked == [{"token": "good", "audiences": ["router"]}]

    async def test_requests_with_one_token_share_a_review(self) -> None:
        reviewer = Reviewer()
        guard = TokenReviewAuthorizer(reviewer, ManualClock())
        assert await asyncio.gather(*(refused(guard, "Bearer good") for _ in range(20))) == [0] * 20
        assert (len(reviewer.asked), len(reviewer.access)) == (1, 1)

    async def test_review_goes_on_if_the_client_that_caused_it_is_gone(self) -> None:
        reviewer = Reviewer()
        guard = TokenReviewAuthorizer(reviewer, ManualClock())
        first = asyncio.create_task(refused(guard, "Bearer good"))
        second = asyncio.create_task(refused(guard, "Bearer good"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 0

    async def test_invented_tokens_do_not_replace_the_users_that_are_known(self) -> None:
        reviewer = Reviewer()
        guard = TokenReviewAuthorizer(reviewer, ManualClock(), TokenReviewOptions(max_entries=4))
        assert await refused(guard, "Bearer good") == 0
        for number in range(20):
            assert await refused(guard, f"Bearer invented-{number}") == 401
        asked = len(reviewer.asked)
        assert await refused(guard, "Bearer good") == 0
        assert len(reviewer.asked) == asked

    async def test_invented_names_do_not_replace_the_access_that_is_known(self) -> None:
        reviewer = Reviewer()
        guard = TokenReviewAuthorizer(reviewer, ManualClock(), TokenReviewOptions(max_entries=4))
        assert await refused(guard, "Bearer good") == 0
        for number in range(20):
            assert await refused(guard, "Bearer good", Destination("default", f"n{number}", 8888, 60.0)) == 403
        assert guard("Bearer good", BOX, "192.0.2.1") is None

    @pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8:1:2::{}"])
    async def test_reviews_of_invented_tokens_are_limited_per_address(self, address: str) -> None:
        clock, reviewer = ManualClock(), Reviewer()
        guard = TokenReviewAuthorizer(reviewer, clock)
        flood = [
            asyncio.create_task(refused(guard, f"Bearer invented-{number}", address=address.format(f"{number:x}")))
            for number in range(3000)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(reviewer.asked) == 256, "the others wait"
        assert await refused(guard, "Bearer good", address="198.51.100.7") == 0, "another address does not"
        await clock.advance(1.0)
        assert len(reviewer.asked) == 256 + 1 + 100
        await clock.advance(60.0)
        statuses = await asyncio.gather(*flood)
        assert statuses.count(401) + statuses.count(429) == 3000
        assert statuses.count(429) > 1500, "few wait at a time"

    async def test_tokens_that_are_valid_are_not_limited(self) -> None:
        reviewer = Reviewer()
        reviewer.all_are_valid = True
        guard = TokenReviewAuthorizer(reviewer, ManualClock())
        for number in range(1000):
            assert await refused(guard, f"Bearer {number}") == 0

    async def test_reviews_of_the_access_of_a_user_are_limited(self) -> None:
        clock, reviewer = ManualClock(), Reviewer()
        guard = TokenReviewAuthorizer(reviewer, clock)
        assert await refused(guard, "Bearer good") == 0
        flood = [
            asyncio.create_task(refused(guard, "Bearer good", Destination("default", f"n{number}", 8888, 60.0)))
            for number in range(4000)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(reviewer.access) == 1024
        assert await refused(guard, "Bearer good") == 0, "what is known is not delayed"
        await clock.advance(60.0)
        assert set(await asyncio.gather(*flood)) == {403, 429}
