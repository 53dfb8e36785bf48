"""Kubernetes protobuf, as far as clients oblige a server to know it: request bodies in, one OpenAPI document out."""

from sandpool.server.protobuf.decoder import decode

__all__ = ["decode"]
