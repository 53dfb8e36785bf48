from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.server import names
from sandpool.server.names import check_generate_name, check_name

LONG = "a" * 64


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (names.subdomain, ["a", "a-b.c", "0", "a" * 253], ["", "A", "-a", "a-", "a..b", ".a", "a_b", "a" * 254, "a\n"]),
        (names.label, ["a", "a-b", "1a", "a" * 63], ["", "A", "a.b", "-a", LONG]),
        (names.dns_1035_label, ["a", "a-1"], ["1a", "", "A", LONG]),
        (names.path_segment, ["system:node", "A b", "..."], [".", "..", "a/b", "a%b"]),
        (
            names.qualified_name,
            ["a", "A_b.c", "example.com/a", "1"],
            ["", "/a", "a/", "a/b/c", "a b", "Ex.com/a", LONG],
        ),
        (names.label_value, ["", "a", "A_b.c"], ["a b", "-a", "a.", LONG]),
        (names.config_key, ["a", ".a", "A_b-c.d"], ["", ".", "..", "..a", "a/b", "a b", "a" * 254]),
        (names.environment_variable, ["A", "a b", "1", "a.b-c"], ["", "a=b", "ä", "a\n"]),
        (names.port_name, ["a", "a-1", "http"], ["", "1", "A", "a--b", "-a", "a-", "a" * 16, "a_b"]),
        (names.http_header, ["X-Header", "a"], ["", "a b", "a:b"]),
        (names.search_domain, ["a.b", "_tcp.example.com", "a_b"], ["", "A", "a b"]),
    ],
)
def test_valid_names_are_accepted_and_invalid_ones_rejected(
    check: names.Check, good: list[str], bad: list[str]
) -> None:
    assert [name for name in good if check(name)] == []
    assert [name for name in bad if not check(name)] == []


def test_errors_have_the_words_of_kube_apiserver() -> None:
    """The words of kube-apiserver, down to the spaces."""
    assert names.label("Upper") == [
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
        "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
        "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
    ]
    assert names.label("a.b") == ["must not contain dots"]
    assert names.label(LONG) == ["must be no more than 63 characters"]
    assert names.qualified_name("") == [
        "name part must be non-empty",
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
        "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
        "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
    ]
    assert names.qualified_name("/a") == ["prefix part must be non-empty"]


def test_prefix_of_a_generated_name_can_end_in_a_dash() -> None:
    assert check_generate_name("pool-", "subdomain") == []
    assert check_generate_name("pool-", "label") == []
    assert check_name("pool-", "subdomain") != []
    assert check_generate_name("Pool-", "subdomain") != []
    assert check_generate_name("a/", "path") != []


@given(st.text(max_size=80))
def test_fast_check_of_keys_agrees_with_the_full_one(text: str) -> None:
    prefix, slash, name = text.rpartition("/")
    sound = (
        (not slash or (prefix and "/" not in prefix and not names.subdomain(prefix)))
        and 0 < len(name.encode()) <= 63
        and names.label_value(name) == []
    )
    assert (names.qualified_name(text) == []) == bool(sound)


_PARTS = st.sampled_from(["a", "A", "-", ".", "_", "/", "=", "\n", "ä", "example.com", "a" * 60, "b" * 250])


@given(st.lists(_PARTS, max_size=5).map("".join), st.lists(_PARTS, max_size=5).map("".join))
def test_one_match_judges_a_label_as_the_rules_for_key_and_value_do(key: str, value: str) -> None:
    assert names.is_label(key, value) == (not names.qualified_name(key) and not names.label_value(value))
