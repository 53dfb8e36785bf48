"""Images: a name, and the files and settings a container starts with."""
