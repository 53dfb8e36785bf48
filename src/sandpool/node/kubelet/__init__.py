"""The node's own HTTPS API, as a kubelet has it, through which an API server in another process reaches its pods."""
