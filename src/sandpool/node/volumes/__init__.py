"""Volumes of pods: scratch space, configuration, and persistent data."""
