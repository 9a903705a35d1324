"""Passwords that would be guessed first, and those that would not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.control.passwords import is_common


@pytest.mark.parametrize(
    "password",
    [
        "password12", "Password123!", "P@ssw0rd2024", "passwordpassword", "PASSWORD!!!", "1234567890",
        "0987654321", "qwertyuiop", "Qwerty12345", "1q2w3e4r5t", "1qaz2wsx3edc", "aaaaaaaaaa", "abababababab",
        "abcdefghij",
        "letmein2026", "welcome-2026", "admin@12345", "iloveyou123", "Summer2026!", "bitcoin2026", "tollgate2026",
        "adminadmin", "superman123", "changeme123", "secret.password", "2026202620", "!!!!!!!!!!1",
    ],
)  # fmt: skip
def test_common(password: str) -> None:
    assert is_common(password)


@pytest.mark.parametrize(
    "password",
    ["correct horse battery", "an even better password", "another good one", "xK9#mQ2$vL",
     "secret password admin", "secret-password-welcome-2026",
     "blue-lantern-riverside", "a good password", "my dog has 3 legs", "tr0ub4dor&3"],
)  # fmt: skip
def test_not_common(password: str) -> None:
    assert not is_common(password)


@given(st.text(max_size=300))
def test_any_text_is_judged(password: str) -> None:
    is_common(password)
