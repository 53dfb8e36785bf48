from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.schema.formats import _TESTS, format_test

EXAMPLES = {
    "bsonobjectid": (["507f1f77bcf86cd799439011"], ["507f", ""]),
    "byte": (["YQ==", "YWJj"], ["YQ", "!!", ""]),
    "cidr": (["10.0.0.0/8", "fd00::/8", "010.0.0.0/8"], ["10.0.0.0", "10.0.0.0/33", "fd00::/129", "x/8", "1.2.3/8"]),
    "creditcard": (["4111 1111 1111 1111"], ["4111 1111 1111 1112", "1"]),
    "date": (["2026-02-28"], ["2026-02-30", "2026-2-3", "20260228", ""]),
    "date-time": (
        ["2026-01-01T00:00:00Z", "2026-01-01t00:00:00.5z", "2026-01-01T00:00:00+01:00"],
        ["2026-01-01", "2026-01-01T00:00:00", "2026-01-01T24:00:00Z", "2026-13-01T00:00:00Z", "tomorrow", ""],
    ),
    "duration": (["1h30m", "-1.5s", "0", "3 days", "2 weeks"], ["", "1", "abc", "1x"]),
    "email": (["a@example.com", "A B <a@example.com>"], ["a", "a@", "@b"]),
    "hexcolor": (["#fff", "00ff00"], ["#ffff", "red"]),
    "hostname": (["example.com", "a", "x-1.example"], ["-a", "a-", "a_b", "a..b", ""]),
    "ipv4": (["10.0.0.1", "010.000.000.001"], ["10.0.0", "10.0.0.256", "::1", "1.2.3.x"]),
    "ipv6": (["::1", "fd00::1", "::ffff:10.0.0.1"], ["10.0.0.1", ":::", "fe80::1%eth0"]),
    "isbn": (["0321751043", "978-0321751041"], ["0321751044", "978-0321751042"]),
    "isbn10": (["0321751043", "080442957X"], ["978-0321751041"]),
    "isbn13": (["978-0321751041"], ["0321751043"]),
    "k8s-long-name": (["a.b-c"], ["A", "a..b", ""]),
    "k8s-short-name": (["a-b"], ["a.b", "-a", "a" * 64]),
    "mac": (["01:23:45:67:89:ab", "0123.4567.89AB", "01-23-45-67-89-ab"], ["01:23:45:67:89", "01:23:45:67:89-ab"]),
    "password": (["", "anything"], []),
    "rgbcolor": (["rgb(0, 10,255)"], ["rgb(0,0,256)", "rgb(0,0)"]),
    "ssn": (["123-45-6789"], ["123456789", "123-45-678"]),
    "uri": (["http://example.com/a?b", "/path", "urn:x"], ["path", "", "http://a b", "/%zz"]),
    "uuid": (["1B4E28BA-2fa1-11d2-883f-0016d3cca427"], ["1b4e28ba", ""]),
    "uuid3": (["1b4e28ba-2fa1-31d2-883f-0016d3cca427"], ["1b4e28ba-2fa1-41d2-883f-0016d3cca427"]),
    "uuid4": (["1b4e28ba-2fa1-41d2-883f-0016d3cca427"], ["1b4e28ba-2fa1-41d2-c83f-0016d3cca427"]),
    "uuid5": (["1b4e28ba-2fa1-51d2-883f-0016d3cca427"], ["1b4e28ba-2fa1-41d2-883f-0016d3cca427"]),
}


def test_every_format_has_examples() -> None:
    assert {name.replace("-", "") for name in EXAMPLES} == set(_TESTS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_format_accepts_and_rejects_its_examples(name: str) -> None:
    test = format_test(name)
    assert test is not None
    right, wrong = EXAMPLES[name]
    assert [text for text in right if not test(text)] == []
    assert [text for text in wrong if test(text)] == []


def test_unknown_formats_are_not_checked() -> None:
    assert format_test("my-format") is None
    assert format_test("") is None


@given(st.sampled_from(sorted(_TESTS)), st.text(max_size=40))
def test_format_test_never_raises(name: str, text: str) -> None:
    test = format_test(name)
    assert test is not None
    assert test(text) in (True, False)
