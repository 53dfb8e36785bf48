"""Makes the MCP server of the official SDK, with our tools."""

from __future__ import annotations

from typing import Final

from mcp.server.mcpserver import Context, MCPServer

from sandpool import __version__
from sandpool.mcp.sessions import Sessions
from sandpool.mcp.tools import MAX_OUTPUT, Tools

_INSTRUCTIONS: Final = (
    "Run commands and Python code in an isolated sandbox, read and write its files. The first call makes a sandbox, "
    "which keeps its files and variables for the session and is deleted afterwards. Copy out what has to stay."
)


def new_server(sessions: Sessions, *, over_http: bool = False, max_output: int = MAX_OUTPUT) -> MCPServer:
    """Make a server for the clients of one transport. The caller closes ``sessions``."""
    server = MCPServer("sandpool", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    tools = Tools(sessions, over_http=over_http, max_output=max_output)
    for tool in tools.all():
        server.add_tool(tool)

    @server.resource("sandboxes://{namespace}", mime_type="application/json")
    def sandboxes(namespace: str, ctx: Context) -> list[str]:
        """The names of the claims of this session."""
        return tools.names(ctx, namespace)

    return server
