"""The published client of the agent-sandbox project, unmodified, in a Python of its own."""
