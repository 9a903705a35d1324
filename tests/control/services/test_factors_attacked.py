"""Second factors under attack: codes that are guessed or used again, what a passkey signed used again."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from tests.control.services.harness import ELSEWHERE, VISIT, Harness

from tollgate.api.factors import Code
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import TooManyAttempts, WrongPassword
from tollgate.control.service_context import ClientInfo
from tollgate.core import totp
from tollgate.core.people import PASSKEY, Factor

ORIGIN, HOST = "https://toll.example", "toll.example"


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


# --- Codes ---------------------------------------------------------------------------------------------


@dataclass
class App:
    """An authenticator app of the owner, and recovery codes."""

    secret: bytes
    recovery: list[str]

    def code(self, now: float) -> str:
        return totp.code_at(self.secret, int(now) // totp.STEP_SECONDS)


@pytest.fixture
def app(harness: Harness, plane: ControlPlane) -> App:
    shown = harness.do(plane.factors.begin_totp(harness.actor("owner"))).secret
    secret = base64.b32decode(shown + "=" * (-len(shown) % 8))
    first = totp.code_at(secret, int(harness.clock.now) // totp.STEP_SECONDS)
    codes = harness.do(plane.factors.confirm_totp(harness.actor("owner"), Code(first)))
    harness.clock.advance(60)
    return App(secret, list(codes))


def test_code_works_once(harness: Harness, plane: ControlPlane, app: App) -> None:
    owner, code = harness.account("owner"), app.code(harness.clock.now)
    harness.do(plane.factors.check_code(VISIT, owner, code))
    for client in (VISIT, ELSEWHERE):
        harness.refused(WrongPassword, plane.factors.check_code(client, owner, code))
    # Nor one from before it, which was never used.
    older = app.code(harness.clock.now - totp.STEP_SECONDS)
    harness.refused(WrongPassword, plane.factors.check_code(VISIT, owner, older))


def test_one_code_used_concurrently_works_once(harness: Harness, plane: ControlPlane, app: App) -> None:
    owner, code = harness.account("owner"), app.code(harness.clock.now)
    results = harness.at_once(*(plane.factors.check_code(VISIT, owner, code) for _ in range(5)))
    assert results.count(None) == 1


def test_ten_wrong_codes_end_guessing_from_everywhere_even_for_the_right_one(
    harness: Harness, plane: ControlPlane, app: App
) -> None:
    owner = harness.account("owner")
    wrong = f"{(int(app.code(harness.clock.now)) + 1) % 10**6:06d}"
    for _ in range(10):
        harness.refused(WrongPassword, plane.factors.check_code(VISIT, owner, wrong))
    for client in (VISIT, ELSEWHERE):
        harness.refused(TooManyAttempts, plane.factors.check_code(client, owner, app.code(harness.clock.now)))
    harness.clock.advance(900)
    harness.do(plane.factors.check_code(VISIT, owner, app.code(harness.clock.now)))


def test_wrong_codes_elsewhere_do_not_lock_the_owner_out_where_the_account_is_signed_in(
    harness: Harness, plane: ControlPlane, app: App
) -> None:
    owner = harness.account("owner")
    harness.do(plane.logins.open_session(VISIT, owner))
    wrong = f"{(int(app.code(harness.clock.now)) + 1) % 10**6:06d}"
    for number in range(30):
        client = ClientInfo(f"203.0.113.{number}", "curl/8", "req-3")
        why = WrongPassword if number < 10 else TooManyAttempts
        harness.refused(why, plane.factors.check_code(client, owner, wrong))
    harness.refused(TooManyAttempts, plane.factors.check_code(ELSEWHERE, owner, app.code(harness.clock.now)))
    harness.do(plane.factors.check_code(VISIT, owner, app.code(harness.clock.now)))
    # There too, ten wrong ones end guessing.
    for _ in range(10):
        harness.refused(WrongPassword, plane.factors.check_code(VISIT, owner, wrong))
    harness.refused(TooManyAttempts, plane.factors.check_code(VISIT, owner, app.code(harness.clock.now)))


# --- Passkeys ------------------------------------------------------------------------------------------


class Passkey:
    """A passkey that is synchronised between devices: its counter stays at 0."""

    def __init__(self, harness: Harness, who: str) -> None:
        self.key, self.id = ec.generate_private_key(ec.SECP256R1()), b"passkey of " + who.encode()
        numbers = self.key.public_key().public_numbers()
        public = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")}
        row = Factor(
            "fac_1", f"acc_{who}", PASSKEY, "Key", harness.clock.now, cbor2.dumps(public), self.id, 0
        )  # fmt: skip
        harness.write(lambda records: records.factors.add(row))

    def signed(self, options: str, **changes: Any) -> str:
        client_data = {
            "type": "webauthn.get",
            "challenge": json.loads(options)["challenge"],
            "origin": ORIGIN,
            **changes,
        }
        client = json.dumps(client_data).encode()
        # Present and verified; the counter.
        data = hashlib.sha256(HOST.encode()).digest() + b"\x05" + bytes(4)
        signature = self.key.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
        response = {"clientDataJSON": text(client), "authenticatorData": text(data), "signature": text(signature)}
        return json.dumps(
            {"id": text(self.id), "rawId": text(self.id), "type": "public-key", "response": response}
        )


def test_signature_of_a_passkey_works_once(harness: Harness, plane: ControlPlane) -> None:
    passkey, challenge = Passkey(harness, "owner"), plane.factors.begin_sign_in()
    signed = passkey.signed(challenge.options)
    assert harness.do(plane.factors.sign_in(challenge.ticket, signed)).id == "acc_owner"
    harness.refused(WrongPassword, plane.factors.sign_in(challenge.ticket, signed))
    # Nor with the ticket written otherwise.
    until, _, rest = challenge.ticket.partition(".")
    for written in (
        f"0{until}.{rest}",
        until.translate({48 + digit: 0xFF10 + digit for digit in range(10)}) + "." + rest,
    ):
        harness.refused(WrongPassword, plane.factors.sign_in(written, signed))
    again = plane.factors.begin_sign_in()
    assert harness.do(plane.factors.sign_in(again.ticket, passkey.signed(again.options))).id == "acc_owner"


def test_passkey_signs_for_this_service_and_this_challenge_alone(harness: Harness, plane: ControlPlane) -> None:
    passkey, challenge = Passkey(harness, "owner"), plane.factors.begin_sign_in()
    other = plane.factors.begin_sign_in()
    for signed in (
        passkey.signed(challenge.options, origin="https://toll.example.evil.example"),
        passkey.signed(challenge.options, type="webauthn.create"),
        passkey.signed(other.options),
    ):
        harness.refused(WrongPassword, plane.factors.sign_in(challenge.ticket, signed))
    harness.clock.advance(301)
    harness.refused(WrongPassword, plane.factors.sign_in(challenge.ticket, passkey.signed(challenge.options)))


@pytest.mark.parametrize(
    "change",
    [
        {"rawId": 7},
        {"rawId": "\ud83d\ude00"},
        {"response": []},
        {"response": {"clientDataJSON": "e30", "authenticatorData": "", "signature": ""}},
        {"response": {"clientDataJSON": "AA", "authenticatorData": "AA", "signature": "AA"}},
        {"response": {"clientDataJSON": "WzFd", "authenticatorData": "AAAA" * 30, "signature": "!"}},
        {"response": {"clientDataJSON": None, "authenticatorData": None, "signature": None}},
        {"type": None},
        {"response": {"clientDataJSON": "e30", "authenticatorData": "A" * 50, "signature": {}}},
    ],
)
def test_malformed_answer_of_a_browser_is_refused(
    harness: Harness, plane: ControlPlane, change: dict[str, Any]
) -> None:
    passkey, challenge = Passkey(harness, "owner"), plane.factors.begin_sign_in()
    signed = {**json.loads(passkey.signed(challenge.options)), **change}
    harness.refused(WrongPassword, plane.factors.sign_in(challenge.ticket, json.dumps(signed)))


@pytest.mark.parametrize(
    "credential", ["", "[]", "[" * 8_000, '{"rawId":"' + "A" * 9_000, '{"a":' * 3_000, "\ud800"]
)
def test_credential_that_is_no_json_of_a_browser_is_refused(
    harness: Harness, plane: ControlPlane, credential: str
) -> None:
    harness.refused(WrongPassword, plane.factors.sign_in(plane.factors.begin_sign_in().ticket, credential))


def test_deep_answer_under_a_known_passkey_is_refused(harness: Harness, plane: ControlPlane) -> None:
    passkey = Passkey(harness, "owner")
    for deep in ("[" * 3_000 + "]" * 3_000, '{"a":' * 2_000 + "1" + "}" * 2_000):
        credential = f'{{"rawId":"{text(passkey.id)}","response":{deep}}}'
        harness.refused(WrongPassword, plane.factors.sign_in(plane.factors.begin_sign_in().ticket, credential))
