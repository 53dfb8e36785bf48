"""The SandboxWarmPool controller: as many sandboxes ready as the pool says, of its template."""
