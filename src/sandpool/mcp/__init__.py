"""The MCP server: sandboxes as tools for language models, on the Python client. Needs the extra ``mcp``."""
