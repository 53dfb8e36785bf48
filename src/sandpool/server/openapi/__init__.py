"""What the objects look like and what can be done with them, for clients that ask first: kubectl explain, apply,
diff and create."""

from sandpool.server.openapi.responses import respond_v2, respond_v3
from sandpool.server.openapi.v3 import index

__all__ = ["index", "respond_v2", "respond_v3"]
