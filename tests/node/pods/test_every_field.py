"""Every field of a pod is supported, rejected, or listed with a reason: none is ignored by accident."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sandpool.api.schema.core import schemas
from sandpool.node.pods.unsupported_fields import find_unsupported
from sandpool.testing.objects import pod

CORE = "io.k8s.api.core.v1."

# What is done, by what has the field. Where it is tested: docs/pods.md.
DONE = {
    "PodSpec": """activeDeadlineSeconds affinity containers dnsConfig dnsPolicy enableServiceLinks hostAliases hostname
        hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os readinessGates restartPolicy
        runtimeClassName schedulerName schedulingGates securityContext setHostnameAsFQDN subdomain
        terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes overhead""",
    "PodSecurityContext": "runAsGroup runAsNonRoot runAsUser seccompProfile appArmorProfile",
    "Container": """args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe
        resources restartPolicy securityContext startupProbe stdin stdinOnce terminationMessagePath
        terminationMessagePolicy tty volumeMounts workingDir""",
    "SecurityContext": """capabilities privileged procMount readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser
        seccompProfile appArmorProfile""",
    "Capabilities": "drop",
    "EnvVar": "name value valueFrom",
    "EnvVarSource": "configMapKeyRef fieldRef resourceFieldRef secretKeyRef",
    "EnvFromSource": "configMapRef prefix secretRef",
    "Lifecycle": "postStart preStop stopSignal",
    "LifecycleHandler": "exec httpGet sleep tcpSocket",
    "Probe": """exec failureThreshold httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket
        terminationGracePeriodSeconds timeoutSeconds""",
    "HTTPGetAction": "host httpHeaders path port scheme",
    "TCPSocketAction": "host port",
    "ContainerPort": "containerPort name",
    "ResourceRequirements": "limits requests",
    "VolumeMount": "mountPath name readOnly subPath subPathExpr mountPropagation",
    "PodDNSConfig": "nameservers options searches",
    "Volume": "configMap downwardAPI emptyDir name persistentVolumeClaim projected secret hostPath",
    "EmptyDirVolumeSource": "medium sizeLimit",
    "HostPathVolumeSource": "path type",
    "ConfigMapVolumeSource": "defaultMode items name optional",
    "SecretVolumeSource": "defaultMode items optional secretName",
    "DownwardAPIVolumeSource": "defaultMode items",
    "DownwardAPIVolumeFile": "fieldRef mode path resourceFieldRef",
    "PersistentVolumeClaimVolumeSource": "claimName readOnly",
    "ProjectedVolumeSource": "defaultMode sources",
    "VolumeProjection": "configMap downwardAPI secret serviceAccountToken",
    "ConfigMapProjection": "items name optional",
    "SecretProjection": "items name optional",
    "DownwardAPIProjection": "items",
    "ServiceAccountTokenProjection": "audience expirationSeconds path",
}

# What is done with all its fields, or said to be unknown as a whole. Preferences are not demands.
SIMPLE = """Affinity AppArmorProfile ConfigMapEnvSource ConfigMapKeySelector ExecAction HTTPHeader HostAlias KeyToPath
    LocalObjectReference
    NodeAffinity NodeSelector NodeSelectorRequirement NodeSelectorTerm ObjectFieldSelector PodAffinity
    PodAffinityTerm PodAntiAffinity PodDNSConfigOption PodOS PodReadinessGate PodSchedulingGate
    PreferredSchedulingTerm ResourceFieldSelector SeccompProfile SecretEnvSource SecretKeySelector SleepAction
    Toleration TopologySpreadConstraint WeightedPodAffinityTerm"""

# What needs nothing to be done, and why.
NOTHING_TO_DO = {
    "PodSpec": {
        "automountServiceAccountToken": "what comes of it is the API server's to say (docs/kubernetes-api.md)",
        "serviceAccount": "the old name of serviceAccountName",
        "serviceAccountName": "tokens are requested for it when they are mounted",
        "hostUsers": "a pod has users of its own, whether it asks for them or not",
        "preemptionPolicy": "no pod is preempted",
        "priority": "pods are placed in the order in which they came (docs/pods.md)",
        "priorityClassName": "the API server makes a priority of it",
    },
    "PodSecurityContext": {
        "fsGroup": "all volumes belong to the pod's one user (docs/pods.md)",
        "fsGroupChangePolicy": "likewise",
        "seLinuxChangePolicy": "there are no labels to change",
        "supplementalGroupsPolicy": "there are no supplemental groups",
    },
    "Container": {
        "resizePolicy": "resources cannot be changed while it runs",
    },
    "SecurityContext": {"allowPrivilegeEscalation": "privileges never grow; true has no effect"},
    "ContainerPort": {"hostIP": "means something with hostPort alone", "protocol": "a port is not opened by naming it"},
    "VolumeMount": {"recursiveReadOnly": "nothing is mounted in volumes, so read-only is so everywhere in it"},
}

OTHER_VOLUMES = """awsElasticBlockStore azureDisk azureFile cephfs cinder csi ephemeral fc flexVolume flocker
    gcePersistentDisk gitRepo glusterfs image iscsi nfs photonPersistentDisk portworxVolume quobyte rbd scaleIO
    storageos vsphereVolume"""

# What is refused, with a value that asks for it.
REFUSED: Mapping[str, Mapping[str, Any]] = {
    "PodSpec": {
        "ephemeralContainers": [{"name": "debug"}],
        "hostIPC": True,
        "hostNetwork": True,
        "hostPID": True,
        "resourceClaims": [{}],
        "resources": {"limits": {"cpu": "1"}},
        "schedulingGroup": {"podGroupName": "group"},
        "shareProcessNamespace": True,
    },
    "PodSecurityContext": {
        "seLinuxOptions": {"level": "s0"},
        "supplementalGroups": [1],
        "sysctls": [{}],
        "windowsOptions": {"hostProcess": True},
    },
    "Container": {"restartPolicyRules": [{}], "volumeDevices": [{}]},
    "SecurityContext": {"seLinuxOptions": {"level": "s0"}, "windowsOptions": {"hostProcess": True}},
    "Capabilities": {"add": ["NET_ADMIN"]},
    "EnvVarSource": {"fileKeyRef": {"key": "a"}},
    "Probe": {"grpc": {"port": 1}},
    "ContainerPort": {"hostPort": 1},
    "ResourceRequirements": {"claims": [{"name": "a"}]},
    "Volume": {kind: {} for kind in OTHER_VOLUMES.split()},
    "VolumeProjection": {"clusterTrustBundle": {}, "podCertificate": {}},
}

# The way from a pod's spec to what has the field.
WAYS: Mapping[str, tuple[str, ...]] = {
    "PodSpec": (),
    "PodSecurityContext": ("securityContext",),
    "Container": ("containers", "[]"),
    "SecurityContext": ("containers", "[]", "securityContext"),
    "Capabilities": ("containers", "[]", "securityContext", "capabilities"),
    "EnvVarSource": ("containers", "[]", "env", "[]", "valueFrom"),
    "Probe": ("containers", "[]", "readinessProbe"),
    "ContainerPort": ("containers", "[]", "ports", "[]"),
    "ResourceRequirements": ("containers", "[]", "resources"),
    "Volume": ("volumes", "[]"),
    "VolumeProjection": ("volumes", "[]", "projected", "sources", "[]"),
}


@pytest.mark.parametrize("holder", DONE)
def test_every_pod_field_is_classified(holder: str) -> None:
    decided = [*DONE[holder].split(), *NOTHING_TO_DO.get(holder, ()), *REFUSED.get(holder, ())]
    assert sorted(decided) == sorted(schemas()[CORE + holder]["properties"])


@pytest.mark.parametrize(
    ("holder", "field", "value"),
    [
        pytest.param(holder, field, value, id=f"{holder}.{field}")
        for holder, fields in REFUSED.items()
        for field, value in fields.items()
    ],
)
def test_unsupported_field_is_rejected_by_name(holder: str, field: str, value: Any) -> None:
    spec: Any = {field: value}
    for step in reversed(WAYS[holder]):
        spec = [spec] if step == "[]" else {step: spec}
    found = find_unsupported(pod("pod", spec=spec), host_paths=True, resources=())
    path = "spec." + ".".join((*WAYS[holder], field)).replace(".[]", "[0]")
    assert [rejection.field.removesuffix("[0]") for rejection in found] == [path]


def test_every_nested_type_is_classified() -> None:
    """Every type that occurs in a supported field."""
    assert _made_of("PodSpec", set()) == DONE.keys() | set(SIMPLE.split())


def _made_of(holder: str, known: set[str]) -> set[str]:
    known.add(holder)
    fields = schemas()[CORE + holder].get("properties") or {}
    for name in DONE[holder].split() if holder in DONE else fields:
        for part in (fields[name], fields[name].get("items"), fields[name].get("additionalProperties")):
            below = part.get("$ref", "") if isinstance(part, dict) else ""
            if below.startswith(CORE) and below.removeprefix(CORE) not in known:
                _made_of(below.removeprefix(CORE), known)
    return known
