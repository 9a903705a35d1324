"""Passkeys, made and used by an authenticator of the test, and codes of an app."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace
from tests.control.services.harness import MINUTE, PEOPLE, PEPPER, VISIT, Harness

from tollgate.api.factors import Code, NewPasskey, PasskeyCredential
from tollgate.control.commands import decoded
from tollgate.control.plane import ControlPlane
from tollgate.control.problems import (
    InvalidInput,
    LimitReached,
    NotFound,
    PersonalTokenRefused,
    WrongPassword,
)
from tollgate.control.services.factors import MAX_PASSKEYS, RECOVERY_CODES, Challenge, SecondFactors
from tollgate.core import totp

ORIGIN, HOST = "https://toll.example", "toll.example"
PRESENT, VERIFIED, ATTESTED = 0x01, 0x04, 0x40


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Authenticator:
    """A device with one passkey (WebAuthn, sections 6.1 and 6.5; COSE keys by RFC 9053)."""

    def __init__(self, *, origin: str = ORIGIN, host: str = HOST, flags: int = PRESENT | VERIFIED) -> None:
        self.id = secrets.token_bytes(16)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.origin, self.host, self.flags = origin, host, flags
        self.count = 0

    def make(self, challenge: Challenge) -> str:
        numbers = self.key.public_key().public_numbers()
        key = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")}
        held = bytes(16) + len(self.id).to_bytes(2, "big") + self.id + cbor2.dumps(key)
        attestation = {"fmt": "none", "attStmt": {}, "authData": self._data(self.flags | ATTESTED) + held}
        client = self._client("webauthn.create", challenge)
        return self._credential(clientDataJSON=client, attestationObject=cbor2.dumps(attestation))

    def use(self, challenge: Challenge) -> str:
        self.count += 1
        client, data = self._client("webauthn.get", challenge), self._data(self.flags)
        signature = self.key.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
        return self._credential(clientDataJSON=client, authenticatorData=data, signature=signature)

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.host.encode()).digest() + bytes([flags]) + self.count.to_bytes(4, "big")

    def _client(self, kind: str, challenge: Challenge) -> bytes:
        expected = json.loads(challenge.options)["challenge"]
        return json.dumps({"type": kind, "challenge": expected, "origin": self.origin}).encode()

    def _credential(self, **response: bytes) -> str:
        values = {name: b64(value) for name, value in response.items()}
        return json.dumps({"id": b64(self.id), "rawId": b64(self.id), "type": "public-key", "response": values})


def passkey(challenge: Challenge, made: str, name: str = "Laptop") -> NewPasskey:
    return NewPasskey(challenge.ticket, decoded(made.encode(), PasskeyCredential), name)


def added(harness: Harness, device: Authenticator, who: str = "owner") -> str:
    """Give a person a passkey; return its id."""
    factors, actor = harness.plane.factors, harness.actor(who)
    challenge = harness.do(factors.begin_passkey(actor))
    return harness.do(factors.add_passkey(actor, passkey(challenge, device.make(challenge)))).id


# --- Passkeys ------------------------------------------------------------------------------------------


def test_passkey_signs_its_account_in(harness: Harness, plane: ControlPlane) -> None:
    device = Authenticator()
    added(harness, device)
    for _ in range(2):
        challenge = plane.factors.begin_sign_in()
        assert harness.do(plane.factors.sign_in(challenge.ticket, device.use(challenge))).id == "acc_owner"
    (row,) = harness.do(plane.factors.list(harness.actor("owner"))).passkeys
    assert (row.name, row.counter, row.last_used_at) == ("Laptop", 2, harness.clock.now)
    assert [entry.action for entry in harness.notes()][-1] == "passkey.add"


def test_options_name_the_host_and_existing_passkeys(harness: Harness, plane: ControlPlane) -> None:
    device = Authenticator()
    added(harness, device)
    options = json.loads(harness.do(plane.factors.begin_passkey(harness.actor("owner"))).options)
    assert options["rp"]["id"] == HOST
    assert options["user"]["name"] == PEOPLE["owner"]
    assert [each["id"] for each in options["excludeCredentials"]] == [b64(device.id)]
    assert options["authenticatorSelection"]["userVerification"] == "required"


@pytest.mark.parametrize(
    "wrong",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://toll.example"},
        {"host": "evil.example"},
        {"flags": PRESENT},
        {"flags": 0},
    ],
)
def test_passkey_of_another_site_or_without_its_owner_is_refused(
    harness: Harness, plane: ControlPlane, wrong: dict[str, Any]
) -> None:
    actor = harness.actor("owner")
    challenge = harness.do(plane.factors.begin_passkey(actor))
    bad = Authenticator(**wrong)
    harness.refused(InvalidInput, plane.factors.add_passkey(actor, passkey(challenge, bad.make(challenge))))
    device = Authenticator()
    added(harness, device)
    for name, value in wrong.items():
        setattr(device, name, value)
    challenge = plane.factors.begin_sign_in()
    harness.refused(WrongPassword, plane.factors.sign_in(challenge.ticket, device.use(challenge)))


def test_signature_of_another_key_is_refused(harness: Harness, plane: ControlPlane) -> None:
    device, thief = Authenticator(), Authenticator()
    added(harness, device)
    thief.id = device.id
    challenge = plane.factors.begin_sign_in()
    harness.refused(WrongPassword, plane.factors.sign_in(challenge.ticket, thief.use(challenge)))


def test_copied_passkey_is_found_out_by_its_counter(harness: Harness, plane: ControlPlane) -> None:
    device = Authenticator()
    added(harness, device)
    for count in (4, 2):
        device.count = count
        challenge = plane.factors.begin_sign_in()
        used = plane.factors.sign_in(challenge.ticket, device.use(challenge))
        if count == 4:
            harness.do(used)
        else:
            harness.refused(WrongPassword, used)


def test_answer_fits_its_own_challenge_alone_and_in_time(harness: Harness, plane: ControlPlane) -> None:
    device = Authenticator()
    added(harness, device)
    first, second = plane.factors.begin_sign_in(), plane.factors.begin_sign_in()
    harness.refused(WrongPassword, plane.factors.sign_in(second.ticket, device.use(first)))
    to_make = harness.do(plane.factors.begin_passkey(harness.actor("owner")))
    harness.refused(WrongPassword, plane.factors.sign_in(to_make.ticket, device.use(to_make)))
    for broken in ("", "1.2.3", first.ticket[:-1], "9" + first.ticket):
        harness.refused(WrongPassword, plane.factors.sign_in(broken, device.use(first)))
    harness.clock.advance(5 * MINUTE)
    harness.refused(WrongPassword, plane.factors.sign_in(first.ticket, device.use(first)))


def test_ticket_of_one_account_adds_nothing_to_another(harness: Harness, plane: ControlPlane) -> None:
    challenge = harness.do(plane.factors.begin_passkey(harness.actor("owner")))
    made = Authenticator().make(challenge)
    refused = plane.factors.add_passkey(harness.actor("admin"), passkey(challenge, made))
    harness.refused(WrongPassword, refused)


@pytest.mark.parametrize("credential", ["", "{}", "null", '{"rawId": 5}', '{"rawId": "eA"}', '{"rawId": "é"}'])
def test_malformed_credential_is_refused(harness: Harness, plane: ControlPlane, credential: str) -> None:
    challenge = plane.factors.begin_sign_in()
    harness.refused(WrongPassword, plane.factors.sign_in(challenge.ticket, credential))
    with pytest.raises(InvalidInput):
        passkey(challenge, credential)


@pytest.mark.parametrize(
    "response", [{}, {"clientDataJSON": "eA", "attestationObject": 5}, {"clientDataJSON": "é"}]
)
@pytest.mark.parametrize("credential_id", ["", "eA", "é"])
def test_credential_that_cannot_be_read_is_refused(
    harness: Harness, plane: ControlPlane, credential_id: str, response: dict[str, Any]
) -> None:
    actor = harness.actor("owner")
    enrolment = harness.do(plane.factors.begin_passkey(actor))
    credential = PasskeyCredential(credential_id, credential_id, "public-key", response)
    wanted = NewPasskey(enrolment.ticket, credential)
    problem = harness.refused(InvalidInput, plane.factors.add_passkey(actor, wanted))
    assert problem.detail == "The browser's passkey could not be read: try again."


def test_removed_passkey_and_that_of_a_disabled_account_are_refused(harness: Harness, plane: ControlPlane) -> None:
    device, other = Authenticator(), Authenticator()
    row, _ = added(harness, device), added(harness, other, "admin")
    held = harness.do(plane.factors.list(harness.actor("owner")))
    assert ([each.id for each in held.passkeys], held.totp) == ([row], None)
    harness.refused(NotFound, plane.factors.remove(harness.actor("admin"), row))
    harness.do(plane.factors.remove(harness.actor("owner"), row))
    assert harness.actions()[-1] == "passkey.remove"
    harness.do(plane.admin.switch(PEOPLE["admin"], active=False))
    for each in (device, other):
        challenge = plane.factors.begin_sign_in()
        harness.refused(WrongPassword, plane.factors.sign_in(challenge.ticket, each.use(challenge)))


def test_passkey_is_kept_once_and_there_are_not_too_many(harness: Harness, plane: ControlPlane) -> None:
    device, actor = Authenticator(), harness.actor("owner")
    added(harness, device)
    challenge = harness.do(plane.factors.begin_passkey(actor))
    harness.refused(
        InvalidInput, plane.factors.add_passkey(actor, passkey(challenge, device.make(challenge), "Again"))
    )
    enrolment = harness.do(plane.factors.begin_passkey(actor))
    for _ in range(MAX_PASSKEYS - 1):
        added(harness, Authenticator())
    harness.refused(LimitReached, plane.factors.begin_passkey(actor))
    last = Authenticator().make(enrolment)
    harness.refused(LimitReached, plane.factors.add_passkey(actor, passkey(enrolment, last, "One too many")))


def test_program_may_touch_no_factor(harness: Harness, plane: ControlPlane) -> None:
    program, _ = harness.program("owner")
    harness.refused(PersonalTokenRefused, plane.factors.begin_passkey(program))
    harness.refused(PersonalTokenRefused, plane.factors.begin_totp(program))
    harness.refused(PersonalTokenRefused, plane.factors.remove(program, "fac_x"))


# --- Codes ---------------------------------------------------------------------------------------------


def code_of(harness: Harness, secret: str) -> str:
    key = base64.b32decode(secret + "=" * (-len(secret) % 8))
    return totp.code_at(key, int(harness.clock.now) // totp.STEP_SECONDS)


def test_codes_count_once_and_recovery_codes_too(harness: Harness, plane: ControlPlane) -> None:
    actor, account = harness.actor("owner"), harness.account("owner")
    made = harness.do(plane.factors.begin_totp(actor))
    assert harness.do(plane.factors.needs_code(account)) is False
    harness.refused(InvalidInput, plane.factors.confirm_totp(actor, Code("000000")))
    recovery = harness.do(plane.factors.confirm_totp(actor, Code(code_of(harness, made.secret))))
    assert len(set(recovery)) == RECOVERY_CODES
    held = harness.do(plane.factors.list(actor))
    assert (held.totp is not None, held.recovery_left) == (True, RECOVERY_CODES)
    harness.refused(InvalidInput, plane.factors.begin_totp(actor))
    assert harness.do(plane.factors.needs_code(account)) is True
    harness.refused(WrongPassword, plane.factors.check_code(VISIT, account, code_of(harness, made.secret)))
    harness.clock.advance(totp.STEP_SECONDS)
    harness.do(plane.factors.check_code(VISIT, account, code_of(harness, made.secret)))
    harness.do(plane.factors.check_code(VISIT, account, recovery[0].upper()))
    harness.refused(WrongPassword, plane.factors.check_code(VISIT, account, recovery[0]))
    assert harness.do(plane.factors.list(actor)).recovery_left == RECOVERY_CODES - 1
    harness.refused(WrongPassword, plane.factors.end_totp(actor, Code("000000")))
    assert harness.do(plane.factors.needs_code(account)) is True
    harness.do(plane.factors.end_totp(actor, Code(recovery[1])))
    assert harness.do(plane.factors.needs_code(account)) is False
    assert harness.do(plane.factors.list(actor)).recovery_left == 0
    assert harness.actions() == ["totp.on", "totp.off"]


def test_restarted_enrolment_requires_a_code_of_the_newest_secret(harness: Harness, plane: ControlPlane) -> None:
    actor = harness.actor("owner")
    older, newest = (harness.do(plane.factors.begin_totp(actor)) for _ in range(2))
    harness.refused(InvalidInput, plane.factors.confirm_totp(actor, Code(code_of(harness, older.secret))))
    harness.do(plane.factors.confirm_totp(actor, Code(code_of(harness, newest.secret))))


def test_secret_of_an_app_outlives_one_change_of_the_pepper(harness: Harness, plane: ControlPlane) -> None:
    actor, account = harness.actor("owner"), harness.account("owner")
    made = harness.do(plane.factors.begin_totp(actor))
    harness.do(plane.factors.confirm_totp(actor, Code(code_of(harness, made.secret))))
    harness.clock.advance(totp.STEP_SECONDS)
    for previous in (None, b"r" * 32):
        factors = SecondFactors(plane.context, b"q" * 32, previous)
        problem = harness.refused(NotFound, factors.check_code(VISIT, account, code_of(harness, made.secret)))
        assert problem.detail == "The secret of the app can no longer be read: contact the operator."
    factors = SecondFactors(plane.context, b"q" * 32, PEPPER)
    harness.do(factors.check_code(VISIT, account, code_of(harness, made.secret)))


def test_second_factors_move_under_a_key_of_their_own(harness: Harness, plane: ControlPlane) -> None:
    actor, account = harness.actor("owner"), harness.account("owner")
    made = harness.do(plane.factors.begin_totp(actor))
    codes = harness.do(plane.factors.confirm_totp(actor, Code(code_of(harness, made.secret))))
    own = SecondFactors(plane.context, b"k" * 40, PEPPER)
    harness.clock.advance(totp.STEP_SECONDS)
    harness.do(own.check_code(VISIT, account, code_of(harness, made.secret)))
    harness.do(own.check_code(VISIT, account, codes[0]))
    # What was used is sealed under it alone: the pepper opens it no more.
    harness.clock.advance(totp.STEP_SECONDS)
    harness.refused(NotFound, plane.factors.check_code(VISIT, account, code_of(harness, made.secret)))
    harness.do(SecondFactors(plane.context, b"k" * 40).check_code(VISIT, account, code_of(harness, made.secret)))


def test_ticket_after_the_password_is_for_one_account_and_short(harness: Harness, plane: ControlPlane) -> None:
    ticket = plane.factors.pending(harness.account("owner"))
    assert harness.do(plane.factors.account_of(ticket)).id == "acc_owner"
    harness.clock.advance(5 * MINUTE)
    harness.refused(WrongPassword, plane.factors.account_of(ticket))


@pytest.mark.parametrize("how", ["another password", "switched off", "deleted"])
def test_ticket_ends_with_the_password_that_it_was_given_for(
    harness: Harness, plane: ControlPlane, how: str
) -> None:
    account = harness.account("viewer")
    ticket = plane.factors.pending(account)
    if how == "another password":
        harness.write(lambda records: records.accounts.replace(replace(account, password_hash="another")))
    elif how == "switched off":
        harness.do(plane.admin.switch(account.email, active=False))
    else:
        harness.do(plane.accounts.delete(harness.actor("viewer")))
    harness.refused(WrongPassword, plane.factors.account_of(ticket))


def test_code_may_be_typed_in_groups(harness: Harness, plane: ControlPlane) -> None:
    actor = harness.actor("owner")
    code = code_of(harness, harness.do(plane.factors.begin_totp(actor)).secret)
    harness.do(plane.factors.confirm_totp(actor, Code(f" {code[:3]} {code[3:]}\n")))
