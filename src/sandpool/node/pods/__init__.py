"""The life of a pod: what a kubelet does between a pod's binding and its end."""
