"""What keeps somebody from installing or uninstalling, in words that say what to do."""

from __future__ import annotations


class InstallError(Exception):
    """The message is for a person and names the way out."""
