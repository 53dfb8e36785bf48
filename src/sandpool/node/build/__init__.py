"""Builds images: every step adds a layer, and commands of a step run in a sandbox."""
