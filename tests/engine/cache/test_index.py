from __future__ import annotations

from sandpool.engine.cache.index import Index


def index_of(*views: str) -> Index[str]:
    """Views are words, found by their letters."""
    index: Index[str] = Index(lambda word: word)
    for view in views:
        index.move(view, (), index.of(view), view)
    return index


def test_index_finds_a_view_by_each_of_its_values() -> None:
    index = index_of("ab", "b", "")
    assert index.get("a") == ("ab",)
    assert index.get("b") == ("ab", "b")
    assert index.get("c") == ()
    assert (index.count("b"), index.count("c"), len(index)) == (2, 0, 2)


def test_duplicate_value_of_a_view_is_indexed_once() -> None:
    assert index_of("aa").get("a") == ("aa",)


def test_changed_view_moves_to_its_new_index_entry() -> None:
    index = index_of("ab", "b")
    index.move("ab", index.of("ab"), index.of("bc"), "bc")
    assert index.get("a") == ()
    assert index.get("b") == ("bc", "b")
    assert index.get("c") == ("bc",)
    index.move("ab", index.of("bc"), (), None)
    index.move("b", index.of("b"), (), None)
    assert len(index) == 0
