"""The HTTP door of the API server: an own HTTP/1.1 front on httptools, without a framework in the hot path."""

from sandpool.server.http.limits import HttpLimits
from sandpool.server.http.server import HttpServer

__all__ = ["HttpLimits", "HttpServer"]
