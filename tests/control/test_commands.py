"""Commands checked against their definitions: every wrong member is named, once."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.samples import sample

from tollgate.api.logs import LogQuery
from tollgate.api.tokens import NewToken, TokenChange
from tollgate.control.commands import MAX_ERRORS, accepted, checked, decoded, from_form, from_query
from tollgate.control.problems import FieldError, InvalidInput

# A wrong value for each member: of another type, and out of bounds where it has bounds.
WRONG_TYPES: dict[str, Any] = {name: {"no": "such"} for name in TokenChange.__struct_fields__}
OUT_OF_BOUNDS: dict[str, Any] = {
    "name": "",
    "methods": ["eth_call"] * 101,
    "requests_per_second": 0,
    "monthly_requests": 10**13,
    "addresses": ["192.0.2.1"] * 101,
    "contracts": ["0x0"] * 101,
}
# None of them is near a known member.
UNKNOWN = st.dictionaries(st.text("QXZ", min_size=6, max_size=9), st.none() | st.booleans(), max_size=4)


def refusal(body: dict[str, Any], kind: type[msgspec.Struct] = TokenChange) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        checked(decoded(msgspec.json.encode(body), kind))
    return refused.value


@given(
    types=st.sets(st.sampled_from(sorted(WRONG_TYPES))),
    bounds=st.sets(st.sampled_from(sorted(OUT_OF_BOUNDS))),
    unknown=UNKNOWN,
)
def test_every_wrong_member_of_a_body_is_named_once(
    types: set[str], bounds: set[str], unknown: dict[str, Any]
) -> None:
    wrong = {name: OUT_OF_BOUNDS[name] for name in bounds} | {name: WRONG_TYPES[name] for name in types} | unknown
    body = sample(TokenChange) | wrong
    if not wrong:
        command = decoded(msgspec.json.encode(body), TokenChange)
        assert checked(command) == command
        return
    found = refusal(body)
    assert sorted(error.field for error in found.errors) == sorted(wrong)
    assert found.extras["field"] == found.errors[0].field
    for error in found.errors:
        assert found.detail.count(error.detail) == 1
        assert error.field in error.detail


def test_missing_and_unknown_members_are_named_together_with_the_nearest_known_one() -> None:
    found = refusal({"nmae": "ci", "active": 1}, NewToken)
    assert [error.field for error in found.errors] == ["nmae", "active", "name"]
    assert found.errors[0].detail == "'nmae' is not known here. Did you mean `name`?"
    assert found.errors[1].detail == "`active` is true or false."
    assert found.errors[2].detail == "`name` is missing."
    assert found.detail.endswith("Known: " + ", ".join(f"`{name}`" for name in NewToken.__struct_fields__) + ".")


def test_a_refusal_of_a_thousand_members_is_short() -> None:
    found = refusal({f"member{number}": 1 for number in range(1000)})
    assert len(found.errors) == MAX_ERRORS
    assert "980 further members are wrong." in found.detail


def test_a_member_sent_twice_of_which_one_is_wrong_is_refused() -> None:
    with pytest.raises(InvalidInput, match="each member once"):
        decoded(b'{"name": 1, "name": "ci"}', NewToken)


def test_a_command_made_in_python_is_checked_like_a_body() -> None:
    with pytest.raises(InvalidInput) as refused:
        checked(TokenChange(name="", requests_per_second=0))
    assert [error.field for error in refused.value.errors] == ["name", "requests_per_second"]


def test_refusals_of_rules_are_reported_with_those_of_definitions() -> None:
    def refuse(value: str) -> str:
        raise InvalidInput(f"{value} is taken.")

    with pytest.raises(InvalidInput) as refused:
        accepted(NewToken(name="ci", requests_per_second=0), {"name": refuse, "requests_per_second": refuse})
    assert refused.value.errors == [
        FieldError("requests_per_second", "`requests_per_second` is a whole number from 1 to 1000000, or null."),
        FieldError("name", "ci is taken."),
    ]


def test_what_is_left_out_is_not_set_and_not_ruled() -> None:
    assert accepted(TokenChange(active=True), {"name": str.upper, "active": lambda value: not value}) == {
        "active": False
    }


def test_an_unreadable_field_of_a_form_is_refused_with_the_others_that_are_wrong() -> None:
    unreadable = [FieldError("monthly_requests", "Write a whole number, or leave it empty.")]
    with pytest.raises(InvalidInput) as refused:
        from_form({"name": "ci", "requests_per_second": 0}, NewToken, unreadable)
    assert [error.field for error in refused.value.errors] == ["monthly_requests", "requests_per_second"]
    assert from_form({"name": "ci"}, NewToken, []) == NewToken(name="ci")


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"status": "404", "errors": "true", "since": "1h30m", "until": "2026-11-15T06:44:44Z", "x": "y"}, []),
        (
            {"status": "null", "errors": "1", "since": "null", "until": "noon"},
            ["status", "errors", "since", "until"],
        ),
        ({"status": "4e2"}, ["status"]),
        ({"status": "+404"}, ["status"]),
        ({"status": "99", "method": ""}, ["status", "method"]),
    ],
)
def test_parameters_of_a_query_are_written_as_json_and_never_null(given: dict[str, str], wrong: list[str]) -> None:
    if not wrong:
        found = from_query(given, LogQuery)
        assert (found.status, found.errors, found.since) == (404, True, "1h30m")
        return
    with pytest.raises(InvalidInput) as refused:
        from_query(given, LogQuery)
    assert [error.field for error in refused.value.errors] == wrong
    assert "null" not in refused.value.detail
