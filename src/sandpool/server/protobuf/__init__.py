"""Decoding of request bodies in Kubernetes protobuf, which client-go sends for built-in kinds."""

from sandpool.server.protobuf.decoder import decode

__all__ = ["decode"]
