"""The node: runs pods as isolated groups of processes on a plain Linux machine."""
