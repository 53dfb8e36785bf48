"""What runs a container: one interface (``runtime``), and the runtimes behind it."""
