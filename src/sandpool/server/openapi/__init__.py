"""What the objects look like and what can be done with them, for clients that ask first: kubectl explain, apply,
diff and create."""

from sandpool.server.openapi.responses import answer_v2, answer_v3
from sandpool.server.openapi.v3 import index

__all__ = ["answer_v2", "answer_v3", "index"]
