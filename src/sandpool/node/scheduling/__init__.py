"""Pod scheduling for a backend that has no scheduler of its own."""
