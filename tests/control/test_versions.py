"""Versions of rows, for ETag and If-Match."""

import re

import msgspec
import pytest
from msgspec.structs import asdict, replace
from tests.samples import sample

from tollgate.api.tokens import TokenSettings
from tollgate.control.problems import ChangedMeanwhile
from tollgate.control.versions import check_version, version_of
from tollgate.core.models import Domain, Team, Token

TOKEN = Token("tok_1", "team_1", "ci", "tg_abcde", 1_000.25, networks=("eth/mainnet",))
SEEN = version_of(TOKEN)
OTHER = msgspec.convert(sample(TokenSettings, networks=["eth/sepolia"]), TokenSettings)


def test_version_is_a_strong_entity_tag() -> None:
    assert re.fullmatch(r'"[0-9a-f]{24}"', SEEN)


def test_same_row_has_the_same_version() -> None:
    assert version_of(Token(**asdict(TOKEN))) == SEEN


CHANGES: list[Token] = [
    replace(TOKEN, name="other"),
    *(replace(TOKEN, **{name: value}) for name, value in asdict(OTHER).items()),
    replace(TOKEN, networks=()),
    replace(TOKEN, networks=("eth/mainnet", "eth/sepolia")),
    replace(TOKEN, methods=("eth/mainnet",), networks=()),
    replace(TOKEN, expires_at=1_000.25),
    replace(TOKEN, id="tok_2"),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_every_change_of_a_setting_is_another_version(changed: Token) -> None:
    assert version_of(changed) != SEEN


def test_changes_are_distinguished() -> None:
    assert len({version_of(changed) for changed in CHANGES}) == len(CHANGES)


def test_use_is_no_change() -> None:
    assert version_of(replace(TOKEN, last_used_at=5.0, capped_until=6.0)) == SEEN
    team = Team("team_1", "acme")
    assert version_of(replace(team, capped_until=6.0)) == version_of(team)
    assert version_of(replace(team, name="other")) != version_of(team)


def test_verification_is_a_change_of_a_domain() -> None:
    domain = Domain("dom_1", "team_1", "example.com", 1.0)
    assert version_of(replace(domain, verified_at=2.0)) != version_of(domain)


@pytest.mark.parametrize("if_match", [None, "*", " * ", SEEN, f" {SEEN} ", f'"x", {SEEN}', f'{SEEN},"y"'])
def test_matching_version_passes(if_match: str | None) -> None:
    check_version(TOKEN, if_match)


@pytest.mark.parametrize("if_match", ["", '"x"', SEEN.strip('"'), f"W/{SEEN}", f"{SEEN}x", '"*"', '"x", *', ","])
def test_other_version_is_refused(if_match: str) -> None:
    with pytest.raises(ChangedMeanwhile):
        check_version(TOKEN, if_match)
