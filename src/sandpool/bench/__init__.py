"""Measurements: load, latency and resources, and the tables they print."""
