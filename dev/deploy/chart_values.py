"""The values of the Helm chart, with a comment for each."""

from __future__ import annotations

from typing import Final

from sandpool.api.resource import Object
from sandpool.api.schema.crds import as_yaml
from sandpool.install import apiserver, monitoring
from sandpool.install.manifests import InstallOptions, controller
from sandpool.install.names import CONTROLLER, IMAGE, NAMESPACE, TAG
from sandpool.install.storage import DEFAULT_STORAGE
from sandpool.install.workload import CONTAINER_SECURITY, POD_SECURITY

# Controller values and the flag that each non-empty one sets.
FLAGS: Final = {
    "leaderElect": "--leader-elect",
    "leaderElectionNamespace": "--leader-election-namespace",
    "clusterDomain": "--cluster-domain",
    "enableTracing": "--enable-tracing",
    "kubeApiQps": "--kube-api-qps",
    "kubeApiBurst": "--kube-api-burst",
    "sandboxConcurrentWorkers": "--sandbox-concurrent-workers",
    "sandboxClaimConcurrentWorkers": "--sandbox-claim-concurrent-workers",
    "sandboxWarmPoolConcurrentWorkers": "--sandbox-warm-pool-concurrent-workers",
    "sandboxTemplateConcurrentWorkers": "--sandbox-template-concurrent-workers",
    "sandboxWarmPoolMaxBatchSize": "--sandbox-warm-pool-max-batch-size",
    "sandboxWarmPoolReadinessGracePeriod": "--sandbox-warm-pool-readiness-grace-period",
    "sandboxWarmPoolUnschedulableRecheckInterval": "--sandbox-warm-pool-unschedulable-recheck-interval",
    "enableWarmPoolEviction": "--enable-warm-pool-eviction",
}

# Those of `sandpool apiserver`: it always takes part in the election, in the namespace of its Service.
APISERVER_FLAGS: Final = {
    value: flag for value, flag in FLAGS.items() if value not in ("leaderElect", "leaderElectionNamespace")
}


def _sections() -> list[tuple[str, Object]]:
    deployment = controller(InstallOptions())[-1]
    (server,) = [each for each in apiserver.objects("") if each["kind"] == "StatefulSet"]
    pod = deployment["spec"]["template"]["spec"]
    flags = {value: True if value == "leaderElect" else "" for value in FLAGS}
    return [
        (
            "The image built from deploy/Dockerfile, in a registry that the cluster can pull from. A digest\n"
            "(sha256:...) takes the place of the tag, which can be moved to another image.",
            {
                "image": {"repository": IMAGE, "tag": TAG, "digest": "", "pullPolicy": "IfNotPresent"},
                "imagePullSecrets": [],
            },
        ),
        (
            "crd keeps sandboxes in custom resources; aggregated keeps them on a volume of Sandpool, behind\n"
            "kube-apiserver (docs/kubernetes.md). For aggregated install with --skip-crds.\n"
            "`sandpool storage move` changes it later; an upgrade with another value than the cluster has is refused.",
            {"storage": DEFAULT_STORAGE},
        ),
        (
            "For storage: aggregated, the StatefulSet of one and its volume.",
            {
                "apiserver": {
                    "resources": server["spec"]["template"]["spec"]["containers"][0]["resources"],
                    "podSecurityContext": server["spec"]["template"]["spec"]["securityContext"],
                    "volumeClaim": server["spec"]["volumeClaimTemplates"][0]["spec"],
                }
            },
        ),
        ("One replica leads; the others stand by with warm caches.", {"replicaCount": InstallOptions().replicas}),
        ("create: false if the namespace exists already.", {"namespace": {"create": True, "name": NAMESPACE}}),
        ("Added to the pods.", {"podAnnotations": {}, "podLabels": {}}),
        ("No CPU limit: it would throttle bursts.", {"resources": pod["containers"][0]["resources"]}),
        ("Where the pods run.", {"nodeSelector": {}, "tolerations": [], "affinity": pod["affinity"]}),
        (
            "Security contexts.",
            {"podSecurityContext": POD_SECURITY, "containerSecurityContext": CONTAINER_SECURITY},
        ),
        ("The Service that Prometheus scrapes.", {"service": {"name": CONTROLLER}}),
        (
            "For the Prometheus operator.",
            {
                "metrics": {
                    "serviceMonitor": {
                        "enabled": False,
                        "additionalLabels": {},
                        "interval": monitoring.INTERVAL,
                        "scrapeTimeout": "",
                    },
                    "prometheusRule": {"enabled": False, "additionalLabels": {}, "additionalGroups": []},
                }
            },
        ),
        (
            "Each value sets the flag of the same name (docs/running.md); empty: the controller's default.\n"
            "The values extensions, webhook* and *pprof* of other charts for this API have no effect.",
            {"controller": {**flags, "extraArgs": []}},
        ),
    ]


def values() -> str:
    return "\n".join(_commented(text) + as_yaml(part, sort_keys=False) for text, part in _sections())


def _commented(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())
