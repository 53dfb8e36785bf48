"""The HTTP/1.1 server of the API, built on httptools, without a framework in the hot path."""

from sandpool.server.http.limits import HttpLimits
from sandpool.server.http.server import HttpServer

__all__ = ["HttpLimits", "HttpServer"]
