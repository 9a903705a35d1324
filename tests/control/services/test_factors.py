"""Second factors: how many passkeys an account may have, and what a code is good for."""

from __future__ import annotations

import base64
from itertools import count
from types import SimpleNamespace

import pytest
from tests.control.services.house import VISIT, House

from tollgate.control.problems import LimitReached, WrongPassword
from tollgate.control.services import factors
from tollgate.control.services.factors import MAX_PASSKEYS
from tollgate.core import totp


def test_one_ticket_brings_no_more_passkeys_than_an_account_may_have(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, ids = house.actor("owner"), count()
    ticket = house.do(house.plane.factors.begin_passkey(owner)).ticket

    def verified(**_: object) -> SimpleNamespace:
        return SimpleNamespace(credential_public_key=b"key", credential_id=b"%d" % next(ids), sign_count=0)

    monkeypatch.setattr(factors, "webauthn", SimpleNamespace(verify_registration_response=verified))
    for _ in range(MAX_PASSKEYS):
        house.do(house.plane.factors.add_passkey(owner, ticket, "{}", "laptop"))
    house.refused(LimitReached, house.plane.factors.add_passkey(owner, ticket, "{}", "laptop"))
    assert len(house.do(house.plane.factors.list(owner)).passkeys) == MAX_PASSKEYS


def test_code_and_recovery_code_are_good_once(house: House) -> None:
    owner, service = house.actor("owner"), house.plane.factors
    made = house.do(service.begin_totp(owner))
    secret, step = base64.b32decode(made.secret), int(house.clock.now) // totp.STEP_SECONDS
    recovery = house.do(service.confirm_totp(owner, totp.code_at(secret, step)))
    account = house.account("owner")
    for good in (totp.code_at(secret, step + 1), recovery[0]):
        house.do(service.check_code(VISIT, account, good))
        house.refused(WrongPassword, service.check_code(VISIT, account, good))
    assert house.do(service.list(owner)).recovery_left == len(recovery) - 1
