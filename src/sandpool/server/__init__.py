"""The embedded Kubernetes API: store, registry, watch, admission, garbage collection, HTTP."""
