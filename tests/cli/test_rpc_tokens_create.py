"""`tollgate rpc tokens create`: bodies, the secret that is shown once, and connections that break."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest
from tests.cli.test_rpc_tokens import SECRET, TOKEN

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

PATH = "teams/acme/tokens"


def test_create_prints_id_name_and_secret_and_notes_that_it_is_shown_once(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, {**TOKEN, "secret": SECRET}, status=201)
    ran = acme.run("rpc", "tokens", "create", "ci", "--team", "acme")
    assert (ran.code, ran.out) == (0, f"id      {TOKEN['id']}\nname    ci\nsecret  {SECRET}\n")
    assert ran.err == "Save the secret now: it is shown only once.\n"
    assert api.requests[0].json == {"name": "ci"}
    assert api.requests[0].bearer == "tga_one"
    assert api.requests[0].headers["user-agent"].startswith("tollgate/")


def test_create_as_json_prints_the_servers_object_and_nothing_else(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, {**TOKEN, "secret": SECRET}, status=201)
    ran = acme.run("rpc", "tokens", "create", "ci", "--json")
    assert ran.json == {**TOKEN, "secret": SECRET}
    assert SECRET not in ran.err


def test_every_setting_goes_into_the_body(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, {**TOKEN, "secret": SECRET}, status=201)
    settings = "--expires 2099-12-31 --network eth/mainnet --network starknet/sepolia --method eth_* --rps 50"
    settings += " --monthly-requests 1000000 --allow-in-url --show-upstream"
    assert acme.run("rpc", "tokens", "create", "ci", *settings.split()).code == 0
    assert api.requests[0].json == {
        "name": "ci",
        "expires_at": "2099-12-31T23:59:59Z",
        "networks": ["eth/mainnet", "starknet/sepolia"],
        "methods": ["eth_*"],
        "requests_per_second": 50,
        "monthly_requests": 1_000_000,
        "allow_in_url": True,
        "show_upstream": True,
    }


def test_an_expiry_as_a_duration_counts_from_now(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, {**TOKEN, "secret": SECRET}, status=201)
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    acme.run("rpc", "tokens", "create", "ci", "--expires", "30d")
    sent = datetime.datetime.fromisoformat(api.requests[0].json["expires_at"])
    assert before <= sent - datetime.timedelta(days=30) <= datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--expires", "tomorrow", "neither a duration (30d), a day (2026-12-31) nor never"),
        ("--expires", "2020-01-01", "has passed already"),
        ("--expires", "2026-13-01", "neither a duration"),
        ("--expires", "2099-01-01T00:00:00", "neither a duration"),
        ("--expires", "999999999w", "neither a duration"),
        ("--rps", "0", "neither a number above 0 nor none"),
        ("--rps", "-1", "neither a number above 0 nor none"),
        ("--monthly-requests", "many", "neither a number above 0 nor none"),
    ],
)
def test_a_setting_that_makes_no_sense_is_wrong_usage(acme: Tool, option: str, value: str, words: str) -> None:
    ran = acme.run("rpc", "tokens", "create", "ci", f"{option}={value}")
    assert ran.code == 2
    assert words in " ".join(ran.err.split())


def test_a_creation_whose_connection_breaks_is_sent_again_under_the_same_key(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, drop=True).on("POST", PATH, {**TOKEN, "secret": SECRET}, status=201)
    ran = acme.run("rpc", "tokens", "create", "ci")
    assert (ran.code, SECRET in ran.out) == (0, True)
    keys = [request.headers["idempotency-key"] for request in api.requests]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 36


def test_two_creations_have_different_keys(api: Api, acme: Tool) -> None:
    for _ in range(2):
        api.on("POST", PATH, {**TOKEN, "secret": SECRET}, status=201)
        acme.run("rpc", "tokens", "create", "ci")
    assert api.requests[0].headers["idempotency-key"] != api.requests[1].headers["idempotency-key"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_replay_without_the_secret_fails_and_shows_how_to_go_on(
    api: Api, acme: Tool, options: list[str]
) -> None:
    replayed = {"Idempotency-Replayed": "true"}
    api.on("POST", PATH, drop=True)
    api.on("POST", PATH, {**TOKEN, "secret": None}, status=201, headers=replayed)
    ran = acme.run("rpc", "tokens", "create", "ci", *options)
    assert (ran.code, ran.out) == (1, "")
    assert 'tollgate: Token "ci" (tok_3kF9aQx72LmN0pRt) was created' in ran.err
    assert "tollgate rpc tokens rotate tok_3kF9aQx72LmN0pRt --team acme --overlap 0s" in ran.err


def test_a_creation_that_breaks_twice_shows_that_it_may_have_happened(api: Api, acme: Tool) -> None:
    api.on("POST", PATH, drop=True).on("POST", PATH, drop=True)
    ran = acme.run("rpc", "tokens", "create", "ci")
    assert ran.code == 1
    assert "A change may have been made" in ran.err
