"""The error of a failed installation or removal."""

from __future__ import annotations


class InstallError(Exception):
    """The message tells the user what to do next."""
