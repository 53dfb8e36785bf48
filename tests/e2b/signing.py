"""Signatures of URLs as clients make them, written down a second time."""

from __future__ import annotations

import base64
import hashlib


def signature(path: str, operation: str, user: str, token: str, expiration: str = "") -> str:
    raw = f"{path}:{operation}:{user}:{token}" + (f":{expiration}" if expiration else "")
    return "v1_" + base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode().rstrip("=")
