"""OpenAPI 3 documents: the schemas and operations that kubectl explain, apply, diff and create read."""

from sandpool.server.openapi.v3 import index, respond

__all__ = ["index", "respond"]
