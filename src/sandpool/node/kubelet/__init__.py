"""The node's own HTTPS API, through which an API server in another process reaches into pods: what a kubelet has."""
