"""The HTTP door of the API server: an own HTTP/1.1 front on httptools, without a framework in the hot path."""

from sandpool.server.http.front import HttpFront
from sandpool.server.http.limits import Limits

__all__ = ["HttpFront", "Limits"]
