"""What a user may do, as kube-apiserver answers it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from sandpool.api.kinds import SUBJECT_ACCESS_REVIEW
from sandpool.api.resource import Object
from sandpool.kube.errors import Forbidden, InternalError, ServiceUnavailable
from sandpool.server.aggregated.subject_access import REMEMBERED, SubjectAccess
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import RequestInfo, parse
from sandpool.testing.clock import ManualClock

ALICE = User("alice", ("developers", "system:authenticated"), "42", {"scopes": ("read",)})
CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/ns/sandboxclaims"


class Api:
    """Answers reviews as the test says, and keeps them."""

    def __init__(self) -> None:
        self.specs: list[Object] = []
        self.status: Callable[[Object], Object] = lambda spec: {"allowed": True}
        self.error: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Semaphore(0)

    async def create(self, type: Any, review: Object) -> Object:
        assert (type, review["kind"]) == (SUBJECT_ACCESS_REVIEW, "SubjectAccessReview")
        self.specs.append(review["spec"])
        self.asked.release()
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return {**review, "status": self.status(review["spec"])}

    @property
    def names(self) -> list[str]:
        return [spec["resourceAttributes"].get("name", "") for spec in self.specs]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def access(api: Api, clock: ManualClock) -> SubjectAccess:
    return SubjectAccess(api, clock)  # type: ignore[arg-type]


def getting(name: str, namespace: str = "ns") -> RequestInfo:
    return parse("GET", f"{CLAIMS.replace('/ns/', f'/{namespace}/')}/{name}", {})


async def test_review_has_the_user_and_the_request(access: SubjectAccess, api: Api) -> None:
    await access.require(ALICE, parse("PATCH", f"{CLAIMS}/a/status", {}))
    assert api.specs == [
        {
            "user": "alice",
            "groups": ["developers", "system:authenticated"],
            "uid": "42",
            "extra": {"scopes": ["read"]},
            "resourceAttributes": {
                "verb": "patch",
                "group": "extensions.agents.x-k8s.io",
                "version": "v1beta1",
                "resource": "sandboxclaims",
                "subresource": "status",
                "namespace": "ns",
            },
        }
    ]


async def test_path_without_a_resource_is_asked_as_a_path(access: SubjectAccess, api: Api) -> None:
    await access.require(ALICE, parse("GET", "/openapi/v3", {}))
    assert api.specs[0]["nonResourceAttributes"] == {"path": "/openapi/v3", "verb": "get"}


async def test_one_review_covers_all_names_of_a_collection(access: SubjectAccess, api: Api) -> None:
    for number in range(100):
        await access.require(ALICE, getting(f"claim-{number}"))
    assert api.names == [""]


async def test_single_name_is_asked_only_when_the_collection_is_refused(access: SubjectAccess, api: Api) -> None:
    api.status = lambda spec: {"allowed": spec["resourceAttributes"].get("name") == "mine"}
    await access.require(ALICE, getting("mine"))
    with pytest.raises(Forbidden, match='User "alice" cannot get resource "sandboxclaims"'):
        await access.require(ALICE, getting("yours"))
    assert api.names == ["", "mine", "yours"]


async def test_explicit_denial_is_final(access: SubjectAccess, api: Api) -> None:
    api.status = lambda spec: {"allowed": False, "denied": True, "reason": "frozen"}
    with pytest.raises(Forbidden, match="frozen"):
        await access.require(ALICE, getting("mine"))
    assert api.names == [""]


@pytest.mark.parametrize("answer", [{}, {"allowed": "yes"}, {"allowed": True, "denied": True}])
async def test_anything_but_allowed_is_refused(access: SubjectAccess, api: Api, answer: Object) -> None:
    api.status = lambda spec: answer
    with pytest.raises(Forbidden):
        await access.require(ALICE, getting("a"))


async def test_answers_expire(access: SubjectAccess, api: Api, clock: ManualClock) -> None:
    await access.require(ALICE, getting("a"))
    api.status = lambda spec: {"allowed": False}
    await clock.advance(REMEMBERED - 1)
    await access.require(ALICE, getting("a"))
    await clock.advance(1)
    with pytest.raises(Forbidden):
        await access.require(ALICE, getting("a"))


async def test_refusals_are_remembered_too(access: SubjectAccess, api: Api) -> None:
    api.status = lambda spec: {"allowed": False}
    for _ in range(3):
        with pytest.raises(Forbidden):
            await access.require(ALICE, getting("a"))
    assert api.names == ["", "a"]


@pytest.mark.parametrize(
    "other",
    [
        User("bob", ALICE.groups, ALICE.uid, ALICE.extra),
        User("alice", ("developers",), ALICE.uid, ALICE.extra),
        User("alice", ALICE.groups, "43", ALICE.extra),
        User("alice", ALICE.groups, ALICE.uid, {"scopes": ("write",)}),
    ],
)
async def test_answer_of_another_user_is_not_used(access: SubjectAccess, api: Api, other: User) -> None:
    await access.require(ALICE, getting("a"))
    await access.require(other, getting("a"))
    assert len(api.specs) == 2


async def test_masters_and_probes_are_not_asked_about(access: SubjectAccess, api: Api) -> None:
    await access.require(User("system:aggregator", ("system:masters",)), getting("a"))
    await access.require(User("system:anonymous"), parse("GET", "/readyz", {}))
    assert api.specs == []


async def test_unreachable_api_refuses_what_is_not_cached(access: SubjectAccess, api: Api) -> None:
    await access.require(ALICE, getting("a"))
    for error in (ConnectionError("gone"), TimeoutError("late"), InternalError("broken")):
        api.error = error
        await access.require(ALICE, getting("b"))
        with pytest.raises(ServiceUnavailable) as refusal:
            await access.require(ALICE, getting("a", "other"))
        assert refusal.value.retry_after == 1
    api.error = None
    await access.require(ALICE, getting("a", "other"))


async def test_one_review_is_in_flight_per_question(access: SubjectAccess, api: Api) -> None:
    api.open.clear()
    waiting = [asyncio.create_task(access.require(ALICE, getting(f"claim-{number}"))) for number in range(50)]
    waiting.append(asyncio.create_task(access.require(ALICE, getting("a", "other"))))
    for _ in range(2):
        await api.asked.acquire()
    waiting[0].cancel()  # the one that asked
    api.open.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 50
    assert len(api.specs) == 2


async def test_failed_review_fails_all_that_wait_and_is_asked_again(access: SubjectAccess, api: Api) -> None:
    api.error = ConnectionError("gone")
    results = await asyncio.gather(
        *(access.require(ALICE, getting(f"claim-{number}")) for number in range(5)), return_exceptions=True
    )
    assert [type(each) for each in results] == [ServiceUnavailable] * 5
    api.error = None
    await access.require(ALICE, getting("a"))
    assert len(api.specs) == 2


async def test_failed_review_of_disconnected_clients_is_no_error_of_the_loop(access: SubjectAccess, api: Api) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    api.open.clear()
    api.error = ConnectionError("gone")
    request = asyncio.create_task(access.require(ALICE, getting("a")))
    await api.asked.acquire()
    request.cancel()
    await asyncio.wait([request])
    (asking,) = access._asking.values()
    api.open.set()
    await asyncio.wait([asking])
    del request, asking
    gc.collect()
    assert reported == []


async def test_number_of_answers_is_bounded(api: Api, clock: ManualClock) -> None:
    access = SubjectAccess(api, clock, most=3)  # type: ignore[arg-type]
    for namespace in ("a", "b", "c", "a", "d"):
        await access.require(ALICE, getting("x", namespace))
    assert len(api.specs) == 4
    await access.require(ALICE, getting("x", "a"))
    assert len(api.specs) == 4, "the answer that was asked for last is kept"
    await access.require(ALICE, getting("x", "b"))
    assert len(api.specs) == 5
