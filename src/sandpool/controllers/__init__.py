"""The controllers of Sandbox, SandboxTemplate, SandboxWarmPool and SandboxClaim, one package each.

Every package has the same modules. ``watches`` enqueues a key when an object changes. ``controller`` reconciles a key:
it observes the caches, asks ``plan`` for a decision, performs it and writes the status. ``plan`` is pure: it does no
I/O and reads no clock. The modules of this package are shared by all controllers.
"""
