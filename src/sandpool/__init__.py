"""Sandpool: agent sandboxes that are warm, isolated and handed out exactly once."""

__version__ = "0.1.0"
