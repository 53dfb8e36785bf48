"""Cgroups, and substitutes where they are not available. A container is identified by its cgroup: its processes, their
limits and usage, freezing and killing."""
