from __future__ import annotations

from sandpool.api.json_cache import JsonCache, edited_once_per_json, once_per_json, text_of
from sandpool.api.resource import Object


def test_function_is_called_once_for_equal_objects() -> None:
    asked: list[Object] = []

    @once_per_json
    def remembered(obj: Object) -> Object:
        asked.append(obj)
        return {**obj}

    first = remembered({"a": [1]})
    assert remembered({"a": [1]}) is first
    others: list[Object] = [{"a": [True]}, {"a": [1.0]}, {"a": ["1"]}]
    assert [repr(remembered(each)) for each in others] == [repr(each) for each in others]
    assert asked == [{"a": [1]}, *others]


def test_edit_returns_its_argument_if_nothing_changes_and_shares_the_result_otherwise() -> None:
    completed = edited_once_per_json(lambda obj: obj if "b" in obj else {**obj, "b": 2})
    first = completed({"a": 1})
    assert first == {"a": 1, "b": 2}
    assert completed({"a": 1}) is first
    for complete in ({"b": 3}, {"b": 3}):
        assert completed(complete) is complete


def test_objects_that_are_no_json_have_no_text_and_are_not_remembered() -> None:
    sizes = once_per_json(len)
    assert text_of({"a": 2**70}) == b""
    assert [sizes({"a": 2**70}), sizes({"a": 2**70, "b": 1})] == [1, 2]


def test_cache_is_bounded_by_the_size_of_its_texts() -> None:
    cache = JsonCache[int]()
    held = 0
    for number in range(50):
        cache.put(b"%02d" % number + b" " * (cache.LARGEST - 2), number)
        held = max(held, len(cache))
    assert held == cache.BUDGET // cache.LARGEST
    assert cache.get(b"49" + b" " * (cache.LARGEST - 2)) == 49


def test_large_texts_are_not_cached() -> None:
    cache = JsonCache[int]()
    text = b" " * (cache.LARGEST + 1)
    cache.put(text, 1)
    assert cache.get(text) is None
