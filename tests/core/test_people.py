"""People as values: no credential appears in a repr, a string or an error about one."""

import copy
from collections.abc import Callable

import msgspec
import pytest
from rich.pretty import pretty_repr

from tollgate.core.people import (
    APPROVED,
    DENIED,
    PENDING,
    Account,
    AuditEntry,
    DeviceLogin,
    Failures,
    Identity,
    Invitation,
    Login,
    Member,
    Replay,
    ResetLink,
    detail_texts,
)

HASH = "$argon2id$v=19$m=65536,t=3,p=4$SECRETSALT$SECRETHASH"
DIGESTS = [b"SECRET" + bytes([65 + number]) * 26 for number in range(3)]
ACCOUNT = Account("acc_1", "ann@example.com", 1.5, "Ann", HASH)
GUARDED: list[msgspec.Struct] = [
    ACCOUNT,
    Login(
        "log_1",
        "acc_1",
        "tool",
        "laptop",
        1.5,
        DIGESTS[0],
        refresh_digest=DIGESTS[1],
        old_refresh_digest=DIGESTS[2],
    ),
    DeviceLogin("dev_1", DIGESTS[0], DIGESTS[1], "laptop", "192.0.2.1", "tollgate/1", 1.5, 601.5, 5),
    Invitation("inv_1", "new@example.com", DIGESTS[0], 1.5, 9.5),
    ResetLink("rst_1", "acc_1", DIGESTS[0], 1.5, 9.5),
    Replay("f" * 64, DIGESTS[0], 1.5, 201, b"SECRET"),
]
ALL: list[msgspec.Struct] = [
    *GUARDED,
    Identity("idn_1", "acc_1", "https://id.example", "1", 1.5),
    Member("mem_1", "team_1", "acc_1", "owner", 1.5),
    Failures("password acc_1", 1, 1.5),
    AuditEntry("aud_1", 1.5, "token.create", "ann@example.com"),
]
NAMED = pytest.mark.parametrize("value", GUARDED, ids=lambda value: type(value).__name__)


@NAMED
@pytest.mark.parametrize(
    "render", [repr, str, "{}".format, "{!r}".format, pretty_repr, lambda value: repr([{"it": (value,)}])]
)
def test_no_secret_in_a_repr(value: msgspec.Struct, render: Callable[[object], str]) -> None:
    assert "SECRET" not in render(value)
    assert "SECRET" not in render(msgspec.structs.replace(value, id="another"))
    assert "SECRET" not in render(copy.copy(value))


@NAMED
def test_every_digest_and_hash_of_a_guarded_value_is_hidden(value: msgspec.Struct) -> None:
    hidden = [name for name in value.__struct_fields__ if name.endswith(("digest", "hash"))]
    assert hidden
    for name in hidden:
        if getattr(value, name):
            assert f"{name}=…" in repr(value)


@NAMED
def test_repr_still_distinguishes_values(value: msgspec.Struct) -> None:
    shown = repr(value)
    assert shown.startswith(f"{type(value).__name__}(id=")
    for name in value.__struct_fields__:
        assert f"{name}=" in shown


def test_repr_shows_where_there_is_no_secret() -> None:
    assert "password_hash=''" in repr(msgspec.structs.replace(ACCOUNT, password_hash=""))
    assert "refresh_digest=None" in repr(Login("log_1", "acc_1", "tool", "", 1.5, DIGESTS[0]))


def test_error_about_a_value_of_the_wrong_kind_does_not_repeat_it() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"id": "a", "email": "e", "created_at": 1.0, "password_hash": ["SECRET"]}, Account)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("value", ALL, ids=lambda value: type(value).__name__)
def test_values_are_frozen_and_equal_by_what_they_hold(value: msgspec.Struct) -> None:
    assert copy.deepcopy(value) == value
    assert msgspec.structs.replace(value, id="another") != value
    with pytest.raises(AttributeError):
        value.id = "another"  # type: ignore[attr-defined]


def test_device_login_waits_until_someone_decides() -> None:
    assert DeviceLogin("dev_1", DIGESTS[0], DIGESTS[1], "", "", "", 1.5, 601.5, 5).state == PENDING
    assert len({PENDING, APPROVED, DENIED}) == 3


def test_changes_of_a_plan_are_reported_in_dollars_and_grouped() -> None:
    before = {"micros_per_million": None, "free_requests": 1_000_000}
    after = {"micros_per_million": 3_000_000, "free_requests": 5_000_000}
    assert detail_texts({"before": before, "after": after}) == [
        ("price for a million", "none → $3.00"),
        ("free requests", "1,000,000 → 5,000,000"),
    ]
    assert detail_texts({"before": {"name": "ci"}, "after": "x"}) == [("before", '{"name": "ci"}'), ("after", "x")]
