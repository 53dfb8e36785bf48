"""Container runtimes: the interface (``runtime``) and its implementations."""
