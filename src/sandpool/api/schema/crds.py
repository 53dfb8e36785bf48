"""The CustomResourceDefinitions of the agent-sandbox API, made from the one description of its kinds.

    python -m sandpool.api.schema.crds DIRECTORY [full|lean]

writes them as YAML files (``make crds`` does so into deploy/crds and deploy/lean).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from sandpool.api import claim, kinds, sandbox, template, warmpool
from sandpool.api.columns import Column, to_printer_columns
from sandpool.api.resource import Object, ResourceType
from sandpool.api.sandbox_spec import Profile
from sandpool.api.schema.fields import Schema

_KINDS: Final[dict[ResourceType, tuple[Callable[[Profile], Schema], tuple[Column, ...]]]] = {
    kinds.SANDBOX: (sandbox.schema, sandbox.COLUMNS),
    kinds.SANDBOX_TEMPLATE: (template.schema, template.COLUMNS),
    kinds.SANDBOX_WARM_POOL: (lambda profile: warmpool.schema(), warmpool.COLUMNS),
    kinds.SANDBOX_CLAIM: (lambda profile: claim.schema(), claim.COLUMNS),
}
_SUBRESOURCES: Final[dict[str, Object]] = {
    "scale": {
        "labelSelectorPath": ".status.selector",
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
    },
    "status": {},
}


@cache
def crd(type: ResourceType, profile: Profile = "full") -> Object:
    """The manifest of one of the four kinds. Raises KeyError for any other."""
    schema, columns = _KINDS[type]
    version: Object = {
        "name": type.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema(profile)},
    }
    if columns:
        version["additionalPrinterColumns"] = to_printer_columns(columns)
    if type.subresources:
        version["subresources"] = {name: _SUBRESOURCES[name] for name in sorted(type.subresources)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": type.group_resource},
        "spec": {
            "group": type.group,
            "names": {
                "kind": type.kind,
                "listKind": type.list_kind,
                "plural": type.plural,
                "shortNames": list(type.short_names),
                "singular": type.singular,
            },
            "scope": "Namespaced",
            "versions": [version],
            "conversion": {"strategy": "None"},
        },
    }


class _Dumper(yaml.CSafeDumper):
    """Writes shared parts out each time: references are unusual in manifests and not every tool reads them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def as_yaml(*objects: Object, sort_keys: bool = True) -> str:
    """Manifests as one file of YAML."""
    return yaml.dump_all(objects, Dumper=_Dumper, width=120, sort_keys=sort_keys)


def manifests(profile: Profile = "full") -> dict[str, str]:
    """The manifests as YAML, by file name."""
    return {f"{type.group}_{type.plural}.yaml": as_yaml(crd(type, profile)) for type in kinds.SANDPOOL}


def main() -> None:
    directory = Path(sys.argv[1])
    profile: Profile = "lean" if sys.argv[2:] == ["lean"] else "full"
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in manifests(profile).items():
        (directory / name).write_text(text)


if __name__ == "__main__":
    main()
