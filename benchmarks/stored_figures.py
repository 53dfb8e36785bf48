"""Figures as files: what a benchmark writes with ``--json``."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandpool.bench.figures import Figure


def save(figures: Sequence[Figure], path: Path, **context: Any) -> None:
    """Write the figures, the machine and ``context`` to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        **context,
        "figures": [asdict(figure) for figure in figures],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def stored_figures(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Return the figures in the form that the HTML report shows."""
    return [
        {
            "name": figure.name,
            "value": figure.value,
            "unit": figure.unit,
            "shown": figure.shown,
            "target": figure.target,
            "verdict": figure.verdict,
            "details": figure.details,
        }
        for figure in figures
    ]
