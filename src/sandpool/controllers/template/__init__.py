"""The SandboxTemplate controller: a NetworkPolicy for the sandboxes of every template."""
