"""Where pods run: for a home that has no scheduler of its own."""
