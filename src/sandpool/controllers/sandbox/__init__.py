"""The Sandbox controller: a pod, its volumes and a Service for every Sandbox, until it is suspended or expires."""
