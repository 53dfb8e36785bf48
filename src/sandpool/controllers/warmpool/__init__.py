"""The SandboxWarmPool controller: keeps the requested number of sandboxes of a template ready."""
