"""One-time codes, tokens and sessions."""

from __future__ import annotations

from sandpool.dashboard.access import (
    CODE_SECONDS,
    IDLE_SECONDS,
    SESSION_SECONDS,
    LoginCheck,
    Sessions,
    login_url,
    new_token,
    one_time_code,
)
from sandpool.testing.clock import ManualClock

TOKEN = new_token()


def test_a_code_logs_in_once() -> None:
    clock = ManualClock()
    check, code = LoginCheck(TOKEN, clock), one_time_code(TOKEN, clock)
    assert check.accepts(code)
    assert not check.accepts(code)
    assert check.accepts(one_time_code(TOKEN, clock))


def test_the_token_logs_in_any_number_of_times() -> None:
    check = LoginCheck(TOKEN, ManualClock())
    assert check.accepts(TOKEN)
    assert check.accepts(TOKEN)
    assert not check.accepts(new_token())


async def test_a_code_expires_after_an_hour() -> None:
    clock = ManualClock()
    check, early, late = LoginCheck(TOKEN, clock), one_time_code(TOKEN, clock), one_time_code(TOKEN, clock)
    await clock.advance(CODE_SECONDS - 1)
    assert check.accepts(early)
    await clock.advance(1)
    assert not check.accepts(late)


async def test_a_code_from_before_the_server_is_refused() -> None:
    clock = ManualClock()
    code = one_time_code(TOKEN, clock)
    await clock.advance(5)
    restarted = LoginCheck(TOKEN, clock, not_before=clock.now().timestamp())
    assert not restarted.accepts(code)  # the process before may have accepted it
    assert restarted.accepts(one_time_code(TOKEN, clock))


def test_codes_of_others_and_changed_codes_are_refused() -> None:
    clock = ManualClock()
    check, code = LoginCheck(TOKEN, clock), one_time_code(TOKEN, clock)
    issued, nonce, signature = code.split(".")
    later = f"{int(issued, 16) + 1:x}"
    for wrong in (
        one_time_code(new_token(), clock),
        f"{later}.{nonce}.{signature}",
        f"{issued}.{nonce}x.{signature}",
        f"{issued}.{nonce}.{signature[:-1]}",
        f"{issued}.{nonce}",
        f"{code}.",
        "",
        "..",
        "é.é.é",
    ):
        assert not check.accepts(wrong), wrong
    assert check.accepts(code)


def test_a_login_url_has_its_code_in_the_fragment() -> None:
    address, fragment, code = login_url("http://127.0.0.1:1", TOKEN, ManualClock()).partition("#")
    assert address == "http://127.0.0.1:1/login"
    assert fragment
    assert LoginCheck(TOKEN, ManualClock()).accepts(code)


async def test_a_session_ends_when_it_is_idle_too_long() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    used, _ = sessions.begin()
    idle, _ = sessions.begin()
    await clock.advance(IDLE_SECONDS - 1)
    assert sessions.find(used) is not None
    await clock.advance(1)
    assert sessions.find(idle) is None
    assert sessions.find(used) is not None


async def test_a_session_ends_after_a_week_in_any_case() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    cookie, _ = sessions.begin()
    for _ in range(SESSION_SECONDS // (IDLE_SECONDS // 2)):
        assert sessions.find(cookie) is not None
        await clock.advance(IDLE_SECONDS // 2)
    assert sessions.find(cookie) is None


async def test_sessions_are_bounded_and_the_one_unused_longest_goes_first() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    oldest, _ = sessions.begin()
    kept, _ = sessions.begin()
    for _ in range(254):
        sessions.begin()
    await clock.advance(1)
    assert sessions.find(kept) is not None
    sessions.begin()
    assert sessions.find(oldest) is None or len(sessions) == 256
    assert sessions.find(kept) is not None
    assert len(sessions) == 256


def test_a_session_has_a_second_secret_and_ends_when_told() -> None:
    sessions = Sessions(ManualClock())
    cookie, session = sessions.begin()
    assert session.csrf not in cookie
    sessions.end(cookie)
    assert sessions.find(cookie) is None
    assert sessions.find("") is None
