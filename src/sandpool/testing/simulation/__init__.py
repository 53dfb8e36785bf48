"""Deterministic simulation: the real controllers and API server, with faults and task order drawn from a seed."""
