from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.resource import Key
from sandpool.server.store.entry import Entry
from sandpool.server.store.object_table import ObjectTable, order


def entry(key: Key, revision: int = 1) -> Entry:
    return Entry(key, revision, revision, b"{}", "u", {}, ())


names = st.text("ab-", min_size=1, max_size=2)
operations = st.lists(st.tuples(st.sampled_from(["put", "remove", "list"]), names, names), max_size=200)


@given(operations)
def test_table_lists_like_a_sorted_dictionary(script: list[tuple[str, str, str]]) -> None:
    table, model = ObjectTable(), dict[Key, Entry]()
    for operation, namespace, name in script:
        key = Key(namespace, name)
        if operation == "put":
            model[key] = entry(key)
            table.put(model[key])
        elif operation == "remove":
            model.pop(key, None)
            table.remove(key)
        else:
            ordered = sorted(model, key=order)
            later = [k for k in ordered if order(k) > order(key)]
            assert list(table.scan()) == [model[k] for k in ordered]
            assert list(table.scan(namespace)) == [model[k] for k in ordered if k[0] == namespace]
            assert list(table.scan(after=key)) == [model[k] for k in later]
            assert list(table.scan(namespace, key)) == [model[k] for k in later if k[0] == namespace]
        assert len(table) == len(model)
        assert table.count(namespace) == sum(1 for k in model if k[0] == namespace)
        assert table.get(key) is model.get(key)
