"""The values of the Helm chart, with what each is for."""

from __future__ import annotations

from typing import Final

from sandpool.api.resource import Object
from sandpool.api.schema.crds import as_yaml
from sandpool.install import monitoring
from sandpool.install.manifests import Choice, controller
from sandpool.install.names import CONTROLLER, IMAGE, NAMESPACE, TAG
from sandpool.install.workload import CONTAINER_SECURITY, POD_SECURITY

# Values of the controller and the flag each becomes, if it is not empty.
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


def _sections() -> list[tuple[str, Object]]:
    deployment = controller(Choice())[-1]
    pod = deployment["spec"]["template"]["spec"]
    flags = {value: True if value == "leaderElect" else "" for value in FLAGS}
    return [
        (
            "The image made from deploy/Dockerfile, where your cluster can pull it from.",
            {"image": {"repository": IMAGE, "tag": TAG, "pullPolicy": "IfNotPresent"}, "imagePullSecrets": []},
        ),
        ("Of several replicas one works and the others wait, knowing everything.", {"replicaCount": Choice().replicas}),
        ("create: false if the namespace is there already.", {"namespace": {"create": True, "name": NAMESPACE}}),
        ("Added to the pods.", {"podAnnotations": {}, "podLabels": {}}),
        ("No limit for the processor: it would be felt in bursts.", {"resources": pod["containers"][0]["resources"]}),
        ("Where the pods run.", {"nodeSelector": {}, "tolerations": [], "affinity": pod["affinity"]}),
        (
            "What the pods may not do.",
            {"podSecurityContext": POD_SECURITY, "containerSecurityContext": CONTAINER_SECURITY},
        ),
        ("The Service that metrics are collected from.", {"service": {"name": CONTROLLER}}),
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
            "Each becomes the flag of its name (docs/running.md); empty: as the controller does by itself.\n"
            "Of the values that other charts of this API have, extensions, webhook* and *pprof* have no effect.",
            {"controller": {**flags, "extraArgs": []}},
        ),
    ]


def values() -> str:
    return "\n".join(_commented(text) + as_yaml(part, sort_keys=False) for text, part in _sections())


def _commented(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())
