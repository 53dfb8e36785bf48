"""Talking to a Kubernetes API: Client, transports, errors, selectors, patches, kubeconfig."""
