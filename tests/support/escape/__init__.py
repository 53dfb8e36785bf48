"""Targets that a sandbox must not reach, and a program that tries to reach them."""
