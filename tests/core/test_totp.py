"""One-time passwords: the vectors of RFC 6238, and when a code is accepted."""

import base64

import pytest

from tollgate.core import totp

SECRET = b"12345678901234567890"


@pytest.mark.parametrize(
    ("now", "code"),
    [(59, "287082"), (1_111_111_109, "081804"), (1_234_567_890, "005924"), (20_000_000_000, "353130")],
)
def test_codes_are_those_of_the_standard(now: int, code: str) -> None:
    assert totp.code_at(SECRET, now // totp.STEP_SECONDS) == code


def test_code_is_accepted_a_step_early_or_late_and_once() -> None:
    step = 40_000_000
    code = totp.code_at(SECRET, step)
    for now in (step - 1, step, step + 1):
        assert totp.step_of(SECRET, code, now * 30.0) == step
    for now in (step - 2, step + 2):
        assert totp.step_of(SECRET, code, now * 30.0) is None
    assert totp.step_of(SECRET, code, step * 30.0, after=step) is None
    assert totp.step_of(SECRET, "", step * 30.0) is None


def test_secret_is_shown_as_apps_take_it() -> None:
    assert base64.b32decode(totp.shown(SECRET)) == SECRET
    link = totp.uri(SECRET, "ada@example.com", "Tollgate")
    assert link == f"otpauth://totp/Tollgate:ada@example.com?secret={totp.shown(SECRET)}&issuer=Tollgate"
