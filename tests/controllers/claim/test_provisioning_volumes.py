"""Volume claim templates of claims: how they are merged and when they are refused."""

from __future__ import annotations

import pytest

from sandpool.api.resource import Object
from sandpool.controllers.claim.errors import ClaimError, Retry
from sandpool.controllers.claim.provisioning import merge_volume_claims


def volume(name: str, size: str = "1Gi") -> Object:
    return {"metadata": {"name": name}, "spec": {"resources": {"requests": {"storage": size}}}}


def refused(template: list[Object], claim: list[Object], policy: str) -> str:
    with pytest.raises(ClaimError) as caught:
        merge_volume_claims(template, claim, policy)
    assert (caught.value.reason, caught.value.retry) == ("VolumeClaimTemplatesError", Retry.NEVER)
    return caught.value.message


def test_without_volumes_of_the_claim_those_of_the_template_are_used() -> None:
    assert merge_volume_claims([volume("a")], [], "Disallowed") == [volume("a")]
    assert merge_volume_claims([], [], "") == []


def test_allowed_appends_the_volumes_of_the_claim() -> None:
    assert merge_volume_claims([volume("a")], [volume("c"), volume("b")], "Allowed") == [
        volume("a"),
        volume("c"),
        volume("b"),
    ]


def test_overrides_replaces_in_place_and_appends_in_the_order_of_the_claim() -> None:
    merged = merge_volume_claims(
        [volume("a"), volume("b")], [volume("d"), volume("a", "9Gi"), volume("c")], "Overrides"
    )
    assert merged == [volume("a", "9Gi"), volume("b"), volume("d"), volume("c")]


@pytest.mark.parametrize(
    ("template", "claim", "policy", "message"),
    [
        (
            [],
            [volume("a")],
            "Disallowed",
            "failed to merge volume claim templates: volume claim templates are disallowed by the template",
        ),
        (
            [],
            [volume("a")],
            "",
            "failed to merge volume claim templates: volume claim templates are disallowed by the template",
        ),
        (
            [],
            [volume("a")],
            "Perhaps",
            'failed to merge volume claim templates: unknown volume claim templates policy "Perhaps"',
        ),
        (
            [volume("a")],
            [volume("b"), volume("a")],
            "Allowed",
            "failed to merge volume claim templates: overriding volume claim templates is forbidden by the template: "
            'cannot override template volume "a"',
        ),
        (
            [],
            [volume("a"), volume("")],
            "Allowed",
            "failed to merge volume claim templates: claim: invalid volume claim templates: name at index 1 is empty",
        ),
        (
            [volume("a"), volume("a")],
            [volume("b")],
            "Overrides",
            'failed to merge volume claim templates: template: invalid volume claim templates: duplicate name "a"',
        ),
        (
            [{"spec": {}}],
            [],
            "Allowed",
            "invalid volume claim templates in template: invalid volume claim templates: name at index 0 is empty",
        ),
    ],
)
def test_conflicting_or_disallowed_volumes_are_rejected(
    template: list[Object], claim: list[Object], policy: str, message: str
) -> None:
    assert refused(template, claim, policy) == message
