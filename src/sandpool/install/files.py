"""The files in deploy/, which are all generated.

    python -m sandpool.install.files DIRECTORY

writes them (``make deploy`` does so); a test fails when they differ from what is generated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from sandpool.api.resource import Object
from sandpool.api.sandbox_spec import Profile
from sandpool.api.schema import crds
from sandpool.install import chart, grafana, monitoring, node
from sandpool.install.manifests import Choice, controller, definitions, namespace, router

# Where ``make crds`` puts the definitions.
_DIRECTORIES: Final[dict[Profile, str]] = {"full": "crds", "lean": "lean"}
# What makes the files, for people who open one of them.
_ORIGIN: Final = "# Made by `make deploy` from src/sandpool/install; changes here will be lost.\n"


def files() -> dict[str, str]:
    """Everything in deploy/ that is generated, by path, except the definitions of the kinds (``make crds``)."""
    choice = Choice()
    core = [namespace(), *controller(choice)]
    kinds = [f"{_DIRECTORIES[choice.profile]}/{name}" for name in sorted(crds.manifests(choice.profile))]
    return {
        "sandpool.yaml": _yaml(namespace(), *definitions(choice), *controller(choice)),
        "controller.yaml": _yaml(*core),
        "kustomization.yaml": _kustomization([*kinds, "controller.yaml"]),
        "router/router.yaml": _yaml(*router(choice)),
        "router/kustomization.yaml": _kustomization(["router.yaml"]),
        "router/monitoring/monitoring.yaml": _yaml(*monitoring.router_objects()),
        "router/monitoring/kustomization.yaml": _kustomization(["monitoring.yaml"]),
        "node/node.yaml": _yaml(*node.objects()),
        "node/kustomization.yaml": _kustomization(["node.yaml"]),
        "monitoring/monitoring.yaml": _yaml(*monitoring.objects()),
        "monitoring/kustomization.yaml": _kustomization(["monitoring.yaml"]),
        "monitoring/grafana-dashboard.json": json.dumps(grafana.dashboard(), indent=2) + "\n",
        **{f"helm/sandpool/{path}": text for path, text in chart.files().items()},
    }


def _yaml(*objects: Object) -> str:
    return _ORIGIN + crds.as_yaml(*objects, sort_keys=False)


def _kustomization(resources: list[str]) -> str:
    return _yaml({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources})


def main() -> None:
    directory = Path(sys.argv[1])
    for path, text in files().items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
