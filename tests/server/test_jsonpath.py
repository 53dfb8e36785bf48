from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.server.jsonpath import JsonPath, field_path

OBJECT: dict[str, Any] = {
    "metadata": {"name": "n", "labels": {"a.b/c": "dotted", "x": "y"}},
    "spec": {
        "replicas": 3,
        "list": ["a", "b", "c", "d"],
        "null": None,
        "containers": [
            {"name": "one", "ports": [{"port": 80}, {"port": 443}]},
            {"name": "two", "weight": 5, "on": True},
        ],
    },
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Live (now)", "status": "False"}]},
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".metadata.name", ["n"]),
        ("{.metadata.name}", ["n"]),
        ("$.metadata.name", ["n"]),
        (".spec.replicas", [3]),
        (".spec.null", [None]),
        (".spec.missing", []),
        (".spec.missing.deeper", []),
        (".spec.null.deeper", []),
        (".metadata.name.deeper", []),
        (".metadata.labels['a.b/c']", ["dotted"]),
        ('.metadata.labels["x"]', ["y"]),
        (r".metadata.labels.a\.b/c", ["dotted"]),
        (".spec.list[0]", ["a"]),
        (".spec.list[-1]", ["d"]),
        (".spec.list[9]", []),
        (".spec.list[1:3]", ["b", "c"]),
        (".spec.list[::2]", ["a", "c"]),
        (".spec.list[*]", ["a", "b", "c", "d"]),
        (".spec.list[0,2]", ["a", "c"]),
        (".metadata['name','labels']", ["n", OBJECT["metadata"]["labels"]]),
        (".metadata.labels.*", ["dotted", "y"]),
        (".spec.containers[*].name", ["one", "two"]),
        (".spec.containers[*].ports[*].port", [80, 443]),
        ("..port", [80, 443]),
        (".spec..port", [80, 443]),
        (".metadata[0]", []),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type=='Ready')].status", ["True"]),
        (".status.conditions[?(@.type != 'Ready')].type", ["Live (now)"]),
        (".status.conditions[?(@.type=='Live (now)')].status", ["False"]),
        (".status.conditions[?(@.type=='Gone')].status", []),
        (".status.missing[?(@.type=='Ready')].status", []),
        (".spec.containers[?(@.weight)].name", ["two"]),
        (".spec.containers[?(@.weight>=5)].name", ["two"]),
        (".spec.containers[?(@.weight<4.5)].name", []),
        (".spec.containers[?(@.on==true)].name", ["two"]),
        (".spec.containers[?(@.name==@.name)].name", ["one", "two"]),
        (".spec.containers[?(@.weight=='5')].name", []),
        (".metadata[?(@.x==1)]", []),
        ("", [OBJECT]),
    ],
)
def test_paths_find_what_kubectl_finds(path: str, expected: list[Any]) -> None:
    assert JsonPath(path).find(OBJECT) == expected


@pytest.mark.parametrize(
    "path",
    [
        "spec.replicas",
        ".spec.",
        ".spec[",
        ".spec[0",
        ".spec[x]",
        ".spec[]",
        ".spec[1:2:0]",
        ".spec[?(@.a==1)",
        ".spec[?(@.a==1]",
        ".spec[?(@.a=~1)]",
        ".spec[?(a==1)]",
        ".spec[?(@.b[?(@.c)])]",
        "....x",
        ".spec}",
        "range .items[*]",
    ],
)
def test_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        JsonPath(path)


def test_path_of_fields_gives_their_names() -> None:
    assert field_path(".spec.replicas") == ("spec", "replicas")
    assert field_path(r".metadata.annotations.a\.b") == ("metadata", "annotations", "a.b")


@pytest.mark.parametrize("path", ["", "spec", ".spec[0]", ".spec..x", ".", ".spec['x']"])
def test_scale_and_selectors_allow_fields_only(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        field_path(path)


def test_descent_is_not_limited_by_the_stack() -> None:
    deep: Any = "bottom"
    for _ in range(5000):
        deep = {"a": deep}
    assert JsonPath("..a").find(deep)[-1] == "bottom"


@settings(deadline=None)
@given(st.text(alphabet=".[]?()@'\"=<>!*,:-01abc\\ ${}", max_size=30))
def test_any_text_is_a_path_or_rejected(text: str) -> None:
    try:
        path = JsonPath(text)
    except ValueError:
        return
    assert isinstance(path.find({"a": [{"b": "c"}], "b": [1, "a"]}), list)
