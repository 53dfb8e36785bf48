"""Pod lifecycle: what a kubelet does from a pod's binding to its removal."""
