"""The calls of one claim, read from an audit log."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.installation import writer
from sandpool.bench.calls import calls_about
from sandpool.bench.load import Claim
from tests.support.installed_cluster import ACCOUNT

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
ORIGIN = EPOCH.timestamp()  # the load's times are seconds since then


def line(at: float, took: float, user: str, verb: str, resource: str, name: str, **more: Any) -> str:
    def moment(seconds: float) -> str:
        return (EPOCH + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")

    about = {"resource": resource, "namespace": "ns", "name": name, **more}
    return json.dumps(
        {
            "apiVersion": "audit.k8s.io/v1",
            "stage": "ResponseComplete",
            "verb": verb,
            "user": {"username": user},
            "userAgent": "sandpool",
            "objectRef": about,
            "responseStatus": {"code": 200},
            "requestReceivedTimestamp": moment(at),
            "stageTimestamp": moment(at + took),
        }
    )


def log(path: Path, shift: float = 0.0) -> Path:
    status = {"subresource": "status"}
    lines = [
        line(1.0 + shift, 0.1, ACCOUNT, "create", "sandboxes", "box"),
        line(10.1 + shift, 0.2, "client", "create", "sandboxclaims", "claim-1"),
        line(10.2 + shift, 0.2, "client", "create", "sandboxclaims", "claim-10"),
        line(10.4 + shift, 0.1, ACCOUNT, "patch", "sandboxes", "box"),
        line(10.5 + shift, 0.1, ACCOUNT, "patch", "sandboxclaims", "claim-1", **status),
        line(10.7 + shift, 0.1, "another", "update", "pods", "box"),
    ]
    path.write_text("".join(f"{each}\n" for each in lines))
    return path


@pytest.mark.parametrize("shift", [0.0, -3600.0, 3600.0])
def test_calls_are_reported_in_client_time_despite_clock_skew(tmp_path: Path, shift: float) -> None:
    sent = 10.0 if shift == 0.0 else 10.1  # on another clock it arrived when it was sent, as far as the log shows
    claim = Claim("claim-1", 10.0, sent, ready=10.65, sandbox="box", answered=10.35)
    found = calls_about(log(tmp_path / "log", shift), "ns", claim, writer, ORIGIN)
    assert [(call.what, call.writer, round(call.begin, 3), round(call.end, 3)) for call in found] == [
        ("claim created", "client", 10.1, 10.3),
        ("sandbox adopted", "controllers", 10.4, 10.5),
        ("claim status written", "controllers", 10.5, 10.6),
        ("update pods", "others", 10.7, 10.8),
    ]


def test_log_without_the_claim_reports_no_calls(tmp_path: Path) -> None:
    assert calls_about(log(tmp_path / "log"), "ns", Claim("claim-2", 10.0), writer, ORIGIN) == []
