"""The node: turns pods into real, isolated groups of processes on a plain Linux machine."""
