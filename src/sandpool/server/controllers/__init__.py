"""Controllers that the API server runs itself: garbage collection, namespaces, CRDs, pods without a Node, Nodes."""
