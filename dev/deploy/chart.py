"""The Helm chart, generated from the same objects as all other manifests.

A chart written by hand drifts from the manifests. Here the templates are the manifests, with an expression such as
``{{ .Values.replicaCount }}`` at the paths that ``_PLACES`` names. Rendered with the default values they equal the
manifests; a test checks that. The names of the values are those of the agent-sandbox chart.

Helm deletes what a release has no more: all of it with `helm uninstall`, and a part when its values change. Two things
have to outlive that, and have the annotation for it. The namespace contains the volume with the sandboxes, also that of
a release whose storage was moved later. Without the APIServices kube-apiserver serves empty custom resources as soon as
definitions are applied, and the garbage collector of the cluster deletes the pods of all sandboxes. `storage.yaml` ends
an installation or upgrade whose storage is not that of the cluster, as `sandpool install` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from dev.deploy.chart_values import APISERVER_FLAGS, FLAGS, values
from sandpool import __version__
from sandpool.api.kinds import API_SERVICE, API_SERVICES, CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, SANDPOOL
from sandpool.api.resource import Object
from sandpool.api.schema.crds import as_yaml, manifests
from sandpool.install import apiserver, monitoring
from sandpool.install.flow import FLOW_SCHEMA
from sandpool.install.manifests import DEFAULT_PROFILE, InstallOptions, controller, namespace
from sandpool.install.names import CONTROLLER, NAMESPACE
from sandpool.server.aggregated.storage_move import RECORD

# The permission for leader election is needed in the namespace of the lease.
_LEASE_NAMESPACE: Final = "default .Values.namespace.name .Values.controller.leaderElectionNamespace"
# Paths that chart values set: by kind, the path in the object and the template expression for it.
_POD: Final = "spec.template.spec"
_CONTAINER: Final = f"{_POD}.containers.0"
_IMAGE: Final = (
    'ternary (printf "%s:%s" .Values.image.repository .Values.image.tag)'
    ' (printf "%s@%s" .Values.image.repository .Values.image.digest) (empty .Values.image.digest)'
)
_PLACES: Final[dict[str, dict[str, str]]] = {
    "Namespace": {"metadata.name": ".Values.namespace.name"},
    "ClusterRoleBinding": {"subjects.0.namespace": ".Values.namespace.name"},
    "RoleBinding": {"subjects.0.namespace": ".Values.namespace.name"},
    "FlowSchema": {
        "spec.rules.0.subjects.0.serviceAccount.namespace": ".Values.namespace.name",
        "spec.rules.0.resourceRules.0.namespaces": f"block: list ({_LEASE_NAMESPACE})",
    },
    "Service": {"metadata.name": ".Values.service.name"},
    "Deployment": {
        "spec.replicas": ".Values.replicaCount",
        "spec.template.metadata.labels": "block: mergeOverwrite (dict) .Values.podLabels {labels}",
        "spec.template.metadata.annotations": "block: .Values.podAnnotations",
        f"{_POD}.imagePullSecrets": "block: .Values.imagePullSecrets",
        f"{_POD}.securityContext": "block: .Values.podSecurityContext",
        f"{_POD}.affinity": "block: .Values.affinity",
        f"{_POD}.nodeSelector": "block: .Values.nodeSelector",
        f"{_POD}.tolerations": "block: .Values.tolerations",
        f"{_CONTAINER}.image": _IMAGE,
        f"{_CONTAINER}.imagePullPolicy": ".Values.image.pullPolicy",
        f"{_CONTAINER}.args": "arguments",
        f"{_CONTAINER}.resources": "block: .Values.resources",
        f"{_CONTAINER}.securityContext": "block: .Values.containerSecurityContext",
    },
    "ServiceMonitor": {
        "metadata.labels": "block: mergeOverwrite (dict) .Values.metrics.serviceMonitor.additionalLabels {labels}",
        "spec.namespaceSelector.matchNames": "block: list .Values.namespace.name",
        "spec.endpoints.0.interval": ".Values.metrics.serviceMonitor.interval",
    },
    "PrometheusRule": {
        "metadata.labels": "block: mergeOverwrite (dict) .Values.metrics.prometheusRule.additionalLabels {labels}",
    },
}
# The same for the objects of the storage ``aggregated``, where they differ.
_APISERVER_PLACES: Final[dict[str, dict[str, str]]] = {
    "FlowSchema": {
        "spec.rules.0.subjects.0.serviceAccount.namespace": ".Values.namespace.name",
        "spec.rules.0.resourceRules.0.namespaces": "block: list .Values.namespace.name",
    },
    "Service": {},
    "StatefulSet": {
        "spec.template.metadata.labels": "block: mergeOverwrite (dict) .Values.podLabels {labels}",
        "spec.template.metadata.annotations": "block: .Values.podAnnotations",
        "spec.volumeClaimTemplates.0.spec": "block: .Values.apiserver.volumeClaim",
        f"{_POD}.imagePullSecrets": "block: .Values.imagePullSecrets",
        f"{_POD}.securityContext": "block: .Values.apiserver.podSecurityContext",
        f"{_POD}.nodeSelector": "block: .Values.nodeSelector",
        f"{_POD}.tolerations": "block: .Values.tolerations",
        f"{_CONTAINER}.image": _IMAGE,
        f"{_CONTAINER}.imagePullPolicy": ".Values.image.pullPolicy",
        f"{_CONTAINER}.args": "apiserver arguments",
        f"{_CONTAINER}.resources": "block: .Values.apiserver.resources",
        f"{_CONTAINER}.securityContext": "block: .Values.containerSecurityContext",
    },
    "APIService": {"spec.service.namespace": ".Values.namespace.name"},
}
_AGGREGATED: Final = 'eq .Values.storage "aggregated"'
_CRD: Final = 'ne .Values.storage "aggregated"'
_HAS_FLOWS: Final = f'.Capabilities.APIVersions.Has "{FLOW_SCHEMA.api_version}"'
_CONDITIONS: Final = {
    "Namespace": ".Values.namespace.create",
    "ServiceMonitor": ".Values.metrics.serviceMonitor.enabled",
    "PrometheusRule": ".Values.metrics.prometheusRule.enabled",
}
_KEPT: Final = ("Namespace", "APIService")
_KEEP: Final = {"helm.sh/resource-policy": "keep"}
_MOVE: Final = "`sandpool storage move --to"
#: Renders nothing. `lookup` finds nothing where there is no cluster, as in `helm template`.
_STORAGE: Final = f"""\
{{{{- if lookup "{CONFIG_MAP.api_version}" "{CONFIG_MAP.kind}" .Values.namespace.name "{RECORD}" }}}}
{{{{- fail "a move of the storage is under way: finish it first, {_MOVE} ...`" }}}}
{{{{- end }}}}
{{{{- $passedOn := false }}}}
{{{{- range list {" ".join(f'"{name}"' for name in API_SERVICES)} }}}}
{{{{- if dig "spec" "service" "" (lookup "{API_SERVICE.api_version}" "{API_SERVICE.kind}" "" .) }}}}
{{{{- $passedOn = true }}}}
{{{{- end }}}}
{{{{- end }}}}
{{{{- $defined := list }}}}
{{{{- range list {" ".join(f'"{type.group_resource}"' for type in SANDPOOL)} }}}}
{{{{- if lookup "{CUSTOM_RESOURCE_DEFINITION.api_version}" "{CUSTOM_RESOURCE_DEFINITION.kind}" "" . }}}}
{{{{- $defined = append $defined . }}}}
{{{{- end }}}}
{{{{- end }}}}
{{{{- if and $passedOn ({_CRD}) }}}}
{{{{- fail "this cluster keeps its sandboxes with storage=aggregated. Leave its APIServices as they are: without them \
the garbage collector deletes the pods of all sandboxes. To change the storage: {_MOVE} crd`" }}}}
{{{{- end }}}}
{{{{- if and $passedOn $defined }}}}
{{{{- fail (printf "this cluster keeps its sandboxes with storage=aggregated, and has definitions of custom resources, \
which nothing uses. Leave its APIServices as they are. Delete the definitions: kubectl delete crd %s" \
(join " " $defined)) }}}}
{{{{- end }}}}
{{{{- if and $defined ({_AGGREGATED}) }}}}
{{{{- fail (printf "this cluster has the CustomResourceDefinition %s, so its sandboxes may be custom resources: \
{_MOVE} aggregated`. If only `helm install` without --skip-crds has made the definitions: kubectl delete crd %s" \
(first $defined) (join " " $defined)) }}}}
{{{{- end }}}}
"""
_TOKEN: Final = re.compile(r"^(?P<lead> *(?:- )*)(?P<key>[^:\n]+): @@(?P<text>.*)@@$", re.MULTILINE)


def files() -> dict[str, str]:
    """The files of the chart, by path."""
    templates: dict[str, str] = {}
    for each in (namespace(), *monitoring.objects()):
        templates[_file_name(each)] = _when(_CONDITIONS[each["kind"]], _template(each, _places(each)))
    for each in controller(InstallOptions()):
        templates[_file_name(each)] = _when(_with_flows(each, _CRD), _template(each, _places(each)))
    for each in apiserver.objects(InstallOptions().image):
        name, text = f"apiserver-{_file_name(each)}", _template(each, _apiserver_places(each))
        made = _when(_with_flows(each, _AGGREGATED), text)
        templates[name] = f"{templates[name]}---\n{made}" if name in templates else made
    templates["storage.yaml"] = _STORAGE
    return {
        "Chart.yaml": as_yaml(_chart(), sort_keys=False),
        "values.yaml": values(),
        **{f"templates/{name}": text for name, text in templates.items()},
        **{f"crds/{name}": text for name, text in manifests(DEFAULT_PROFILE).items()},
    }


def _chart() -> Object:
    return {
        "apiVersion": "v2",
        "name": "sandpool",
        "description": "Agent sandboxes, warm and handed out exactly once.",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
    }


def _file_name(object: Object) -> str:
    return f"{object['kind'].lower()}.yaml"


def _places(object: Object) -> dict[str, str]:
    places = dict(_PLACES.get(object["kind"], {}))
    if object["metadata"].get("namespace") == NAMESPACE:
        is_election = object["kind"] in ("Role", "RoleBinding")
        places["metadata.namespace"] = _LEASE_NAMESPACE if is_election else ".Values.namespace.name"
    return places


def _apiserver_places(object: Object) -> dict[str, str]:
    kind = object["kind"]
    places = dict(_APISERVER_PLACES.get(kind, _PLACES.get(kind, {})))
    if kind == "Service" and object["metadata"]["name"] == CONTROLLER:
        places |= _PLACES[kind]
    if object["metadata"].get("namespace") == NAMESPACE:
        places["metadata.namespace"] = ".Values.namespace.name"
    return places


def _with_flows(object: Object, condition: str) -> str:
    """Older clusters have no FlowSchema of this version."""
    return f"and ({condition}) ({_HAS_FLOWS})" if object["kind"] == FLOW_SCHEMA.kind else condition


def _when(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _template(object: Object, places: dict[str, str]) -> str:
    kind = object["kind"]
    if kind in _KEPT:
        object = {**object, "metadata": {**object["metadata"], "annotations": _KEEP}}
    escaped = _escaped(object)
    for path, text in places.items():
        labels = _dict_literal(_at(object, path)) if "{labels}" in text else ""
        escaped = _placed(escaped, path.split("."), f"@@{text.replace('{labels}', labels)}@@")
    text = _TOKEN.sub(_expanded, _unquoted(yaml.safe_dump(escaped, sort_keys=False, width=10_000)))
    if kind == "PrometheusRule":
        text += (
            "{{- range .Values.metrics.prometheusRule.additionalGroups }}\n  -{{ toYaml . | nindent 4 }}\n{{- end }}\n"
        )
    if kind == "ServiceMonitor":
        text += "{{- with .Values.metrics.serviceMonitor.scrapeTimeout }}\n    scrapeTimeout: {{ . }}\n{{- end }}\n"
    return text


def _expanded(found: re.Match[str]) -> str:
    """Replace a token in the YAML by a template expression: one line, or a block with the right indentation."""
    lead, key, text = found["lead"], found["key"], found["text"]
    inside = len(lead) + 2
    if text in ("arguments", "apiserver arguments"):
        given = _arguments(FLAGS) if text == "arguments" else _arguments(APISERVER_FLAGS, "apiserver")
        return f"{lead}{key}:\n" + "\n".join(each if each.startswith("{{-") else " " * inside + each for each in given)
    if text.startswith("block: "):
        value = text.removeprefix("block: ")
        whole = value if " " not in value else f"({value})"
        return f"{lead}{key}: {{{{- toYaml {whole} | nindent {inside} }}}}"
    number = text == ".Values.replicaCount"
    return f"{lead}{key}: {{{{ {text} }}}}" if number else f"{lead}{key}: {{{{ {text} | quote }}}}"


def _arguments(flags: Mapping[str, str], command: str = "controller") -> list[str]:
    lines = [f"- {command}"]
    for value, flag in flags.items():
        expression = f".Values.controller.{value}"
        lines += [
            f'{{{{- if ne (print {expression}) "" }}}}',
            f"- {flag}={{{{ {expression} }}}}",
            "{{- end }}",
        ]
    return [*lines, "{{- range .Values.controller.extraArgs }}", "- {{ . | quote }}", "{{- end }}"]


def _dict_literal(labels: dict[str, str]) -> str:
    return "(dict " + " ".join(f'"{key}" "{value}"' for key, value in labels.items()) + ")"


def _escaped(value: Any) -> Any:
    """Escape template text that is not for Helm, such as the placeholders of alerts."""
    if isinstance(value, dict):
        return {key: _escaped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_escaped(each) for each in value]
    if isinstance(value, str) and "{{" in value:
        return re.sub(r"\{\{.*?\}\}", lambda found: f"{{{{ `{found[0]}` }}}}", value)
    return value


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value[int(step) if isinstance(value, list) else step]
    return value


def _placed(value: Any, path: list[str], text: str) -> Any:
    """Return ``value`` with ``text`` at a path, which is created if it does not exist."""
    if not path:
        return text
    if isinstance(value, list):
        index = int(path[0])
        return [_placed(each, path[1:], text) if at == index else each for at, each in enumerate(value)]
    value = value or {}
    return {**value, path[0]: _placed(value.get(path[0]), path[1:], text)}


def _unquoted(text: str) -> str:
    """Undo the quoting that YAML adds to our tokens."""
    return re.sub(r"'(@@.*@@)'$", lambda found: found[1].replace("''", "'"), text, flags=re.MULTILINE)
