"""The change of a template that allows what a claim adds: the least that is enough."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.claim_policies import policy_advice
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, TemplateView

ENV = "envVarsInjectionPolicy"
VOLUMES = "volumeClaimTemplatesPolicy"
MAIN: Object = {"name": "main", "env": [{"name": "KNOWN", "value": "1"}]}
SIDE: Object = {"name": "side", "env": [{"name": "OF_SIDE", "value": "1"}]}
SECRETS: Object = {"name": "main", "envFrom": [{"secretRef": {"name": "all"}}]}


def template(*containers: Object, init: Object | None = None, **spec: Any) -> TemplateView:
    pod: Object = {"containers": list(containers or (MAIN, SIDE)), "initContainers": [init] if init else []}
    return TemplateView.from_object({"metadata": {"name": "python"}, "spec": {"podTemplate": {"spec": pod}, **spec}})


def env(name: str, container: str = "") -> Object:
    where = {"containerName": container} if container else {}
    return {"env": [{"name": name, "value": "1", **where}]}


def volume(name: str) -> Object:
    return {"volumeClaimTemplates": [{"metadata": {"name": name}, "spec": {}}]}


def asked(**spec: Any) -> ClaimView:
    return ClaimView.from_object({"metadata": {"name": "mine"}, "spec": spec})


@pytest.mark.parametrize(
    ("policies", "spec", "expected"),
    [
        ({}, {}, ""),
        ({}, env("NEW"), f'set {ENV} to Allowed or Overrides in template "python"'),
        ({ENV: "Disallowed"}, env("KNOWN"), f'set {ENV} to Overrides in template "python"'),
        ({ENV: "Allowed"}, env("NEW"), ""),
        ({ENV: "Allowed"}, env("KNOWN"), f'set {ENV} to Overrides in template "python"'),
        ({ENV: "Allowed"}, env("KNOWN", "side"), ""),
        ({ENV: "Allowed"}, env("OF_SIDE", "side"), f'set {ENV} to Overrides in template "python"'),
        ({ENV: "Overrides"}, env("KNOWN"), ""),
        ({}, volume("more"), f'set {VOLUMES} to Allowed or Overrides in template "python"'),
        ({VOLUMES: "Allowed", **volume("data")}, volume("data"), f'set {VOLUMES} to Overrides in template "python"'),
        ({VOLUMES: "Allowed", **volume("data")}, volume("more"), ""),
        ({VOLUMES: "Overrides"}, {"volumeClaimTemplates": [{"spec": {}}]}, ""),
        (
            {ENV: "Allowed"},
            {**env("KNOWN"), **volume("more")},
            f'set {ENV} to Overrides and {VOLUMES} to Allowed or Overrides in template "python"',
        ),
    ],
)
def test_advice_is_the_least_change_that_allows_the_claim(policies: Object, spec: Object, expected: str) -> None:
    assert policy_advice(asked(**spec), template(**policies)) == expected


def test_variables_beside_unknown_ones_need_overrides() -> None:
    advice = f'set {ENV} to Overrides in template "python"'
    assert policy_advice(asked(**env("NEW")), template(SECRETS, envVarsInjectionPolicy="Allowed")) == advice
    setup = {**SECRETS, "name": "setup"}
    behind_setup = template(init=setup, envVarsInjectionPolicy="Allowed")
    assert policy_advice(asked(**env("NEW", "setup")), behind_setup) == advice
    assert policy_advice(asked(**env("NEW")), behind_setup) == ""
