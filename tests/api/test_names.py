from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api import names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "811c9dc5"),
        ("a", "e40c292c"),
        ("my-sandbox", "374de8f5"),
        ("pool", "91dd7983"),
        ("test-pool", "59733166"),
        ("test-template", "69155462"),
        ("python-warmpool", "99619c39"),
    ],
)
def test_name_hashes_are_those_of_the_go_implementation(text: str, expected: str) -> None:
    assert names.name_hash(text) == expected


@given(st.text(max_size=300), st.integers())
def test_generated_names_have_the_prefix_and_a_bounded_length(prefix: str, seed: int) -> None:
    name = names.generate_name(prefix, Random(seed))
    assert len(name) <= 63
    assert name[:-5] == prefix[:58]
    assert set(name[-5:]) <= set("bcdfghjklmnpqrstvwxz2456789")


def test_names_are_derived_from_the_object() -> None:
    assert names.volume_claim_name("data", "box") == "data-box"
    assert names.network_policy_name("python") == "python-network-policy"
    assert names.service_fqdn("box", "default") == "box.default.svc.cluster.local"
    assert names.service_fqdn("box", "default", "example.org") == "box.default.svc.example.org"


def test_service_ports_get_unique_names() -> None:
    assert names.service_port_name(80, "TCP", ()) == "p-80-tcp"
    assert names.service_port_name(80, "TCP", {"p-80-tcp"}) == "p-80-tcp-2"
    assert names.service_port_name(80, "TCP", {"p-80-tcp", "p-80-tcp-2"}) == "p-80-tcp-3"
