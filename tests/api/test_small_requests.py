"""Small requests for containers that set only limits."""

from __future__ import annotations

import pytest

from sandpool.api.small_requests import requests_within


def test_request_is_small_and_never_larger_than_the_limit() -> None:
    assert requests_within({"cpu": "4", "memory": "8Gi"}) == {"cpu": "10m", "memory": "32Mi"}
    assert requests_within({"cpu": "5m", "memory": "1Mi"}) == {"cpu": "5m", "memory": "1Mi"}
    assert requests_within({"ephemeral-storage": "1Gi"}) == {"ephemeral-storage": "64Mi"}


@pytest.mark.parametrize("name", ["hugepages-2Mi", "example.com/gpu", "pods"])
def test_other_resources_are_left_out(name: str) -> None:
    """Requests and limits of extended resources and huge pages have to be equal."""
    assert requests_within({name: "1"}) == {}


@pytest.mark.parametrize("amount", ["", "lots", "1 Gi", None, [1]])
def test_amount_that_is_no_quantity_is_left_out(amount: object) -> None:
    assert requests_within({"cpu": amount}) == {}  # type: ignore[dict-item]
