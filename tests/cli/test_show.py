"""Output: on a terminal and in a pipe, with and without colours, and with hostile names."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.samples import sample

from tollgate.api.teams import Team
from tollgate.api.tokens import Token
from tollgate.cli import show

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

NOW = datetime.datetime(2026, 11, 15, 12, 0, 0, tzinfo=datetime.UTC)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
TEAMS_PATH = "teams?limit=100"


def seconds(number: float) -> datetime.datetime:
    return NOW + datetime.timedelta(seconds=number)


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (0, "just now"),
        (-59, "just now"),
        (-60, "1 minute ago"),
        (-200, "3 minutes ago"),
        (-3_600, "1 hour ago"),
        (-7_300, "2 hours ago"),
        (-86_400, "1 day ago"),
        (-40 * 86_400, "1 month ago"),
        (-800 * 86_400, "2 years ago"),
        (30, "in less than a minute"),
        (120, "in 2 minutes"),
        (5 * 86_400, "in 5 days"),
    ],
)
def test_times_are_written_as_people_write_them(offset: float, words: str) -> None:
    assert show.relative(seconds(offset), NOW) == words


def test_times_for_programs_are_in_utc_to_the_second() -> None:
    east = datetime.timezone(datetime.timedelta(hours=2))
    assert show.rfc3339(datetime.datetime(2026, 11, 15, 8, 44, 44, 999, tzinfo=east)) == "2026-11-15T06:44:44Z"


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (7, "7"),
        (["a", "b"], "a, b"),
        (NOW, "2026-11-15T12:00:00Z"),
        ("a\tb", "a\\x09b"),
        (["a\x1b"], "a\\x1b"),
    ],
)
def test_values_are_spelled(cell: show.Cell, words: str) -> None:
    assert show.spelled(cell, None) == words


@given(st.text())
def test_nothing_that_was_cleaned_holds_a_control_character(text: str) -> None:
    cleaned = show.clean(text)
    assert not any(ord(character) < 32 or 0x7F <= ord(character) <= 0x9F for character in cleaned)
    cleaned.encode()  # no lone surrogate either


@given(st.text(alphabet=st.characters(categories=["L", "N", "P"])))
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert show.clean(text) == text


def test_columns_stay_straight_beside_wide_and_combining_characters() -> None:
    assert show.aligned([["令牌", "x"], ["abcd", "y"], ["e\u0301e", "z"]]) == [
        "令牌  x",
        "abcd  y",
        "e\u0301e    z",
    ]


# ---- on a terminal


def teams(api: Api, **members: Any) -> None:
    team = sample(Team, id="team_1", name="acme", role="owner", created_at="2020-01-01T00:00:00Z")
    api.on("GET", TEAMS_PATH, {"items": [{**team, **members}], "next": None})


@pytest.mark.e2e
def test_a_terminal_gets_a_table_with_colours_and_relative_times(api: Api, acme: Tool) -> None:
    teams(api)
    with acme.terminal("teams", "list") as terminal:
        assert terminal.end() == 0
    assert ESCAPE.search(terminal.seen)
    title, row = ESCAPE.sub("", terminal.seen).splitlines()[:2]
    assert title.split() == ["ID", "NAME", "ROLE", "CREATED"]
    assert row.startswith("team_1  acme  owner  ")
    assert row.rstrip().endswith("years ago")


@pytest.mark.e2e
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, {"TERM": "dumb"}])
def test_no_color_leaves_the_table_and_takes_the_colours(api: Api, acme: Tool, env: dict[str, str]) -> None:
    for arguments, answer in ((["teams", "list"], TEAMS_PATH), (["teams", "show"], "teams/acme")):
        teams(api) if answer == TEAMS_PATH else api.on("GET", answer, sample(Team, name="acme", suspended_at=None))
        with acme.terminal(*arguments, env=env) as terminal:
            assert terminal.end() == 0
        assert "\x1b[3" not in terminal.seen
        assert not re.search(r"\x1b\[\d*;?3[0-7]m", terminal.seen)
        assert "acme" in terminal.seen


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, False), ({"CLICOLOR_FORCE": "1"}, True), ({"CLICOLOR_FORCE": "0"}, False)],
)
def test_a_pipe_gets_colours_only_by_force(api: Api, acme: Tool, env: dict[str, str], coloured: bool) -> None:
    teams(api)
    ran = acme.process("teams", "list", env=env)
    assert bool(ESCAPE.search(ran.out)) is coloured
    api.on("GET", "teams/acme", sample(Team, name="acme", suspended_at=None))
    assert bool(ESCAPE.search(acme.process("teams", "show", env=env).out)) is coloured


@pytest.mark.e2e
def test_a_name_that_looks_like_markup_is_shown_as_it_is(api: Api, acme: Tool) -> None:
    teams(api, name="[bold]a[/bold] :smile: \x1b[2J")
    with acme.terminal("teams", "list") as terminal:
        terminal.end()
    assert "[bold]a[/bold] :smile: \\x1b[2J" in terminal.seen


@pytest.mark.e2e
def test_columns_are_dropped_until_a_table_fits_80_columns_and_no_word_is_broken(api: Api, acme: Tool) -> None:
    token = sample(
        Token, id="tok_3kF9aQx72LmN0pRt", name="a-name-of-a-usual-length", prefix="tg_01234", active=False,
        created_at="2020-01-01T00:00:00Z", last_used_at="2020-01-01T00:00:00Z", expires_at=None,
    )  # fmt: skip
    for columns, titles in (
        (160, ["ID", "NAME", "PREFIX", "CREATED", "LAST", "USED", "EXPIRES", "STATE"]),
        (80, ["ID", "NAME", "LAST", "USED", "STATE"]),
        (60, ["ID", "NAME", "STATE"]),
    ):
        api.on("GET", "teams/acme/tokens?limit=100", {"items": [token], "next": None})
        with acme.terminal("rpc", "tokens", "list", columns=columns) as terminal:
            assert terminal.end() == 0
        lines = ESCAPE.sub("", terminal.seen).splitlines()
        assert lines[0].split() == titles
        assert len(lines) == 2, "one line for one token"
        assert max(len(line.rstrip()) for line in lines) <= columns
        assert lines[1].split()[:2] == [token["id"], token["name"]]
        # "disabled" is yellow.
        assert "\x1b[33mdisabled" in terminal.seen


@pytest.mark.e2e
def test_an_id_is_never_cut_on_a_narrow_terminal(api: Api, acme: Tool) -> None:
    teams(api, id="team_0123456789abcdef", name="a-rather-long-name-of-a-team")
    with acme.terminal("teams", "list", columns=40) as terminal:
        terminal.end()
    assert "team_0123456789abcdef" in terminal.seen
    assert "…" not in terminal.seen


@pytest.mark.e2e
def test_json_on_a_terminal_is_json(api: Api, acme: Tool) -> None:
    teams(api)
    with acme.terminal("teams", "list", "--json") as terminal:
        terminal.end()
    assert terminal.seen.startswith('{\n  "items": [')
    assert "\x1b" not in terminal.seen


@pytest.mark.e2e
@pytest.mark.parametrize("stderr", [None, subprocess.PIPE])
def test_a_page_that_is_not_the_last_ends_with_the_command_for_the_next(
    api: Api, acme: Tool, stderr: int | None
) -> None:
    item = sample(Token, id="tok_1", name="ci")
    api.on("GET", "teams/acme/tokens?limit=1", {"items": [item], "next": "a b'c"})
    words = "There is more: tollgate rpc tokens list --team acme --limit 1 --after 'a b'\"'\"'c'\n"
    with acme.terminal("rpc", "tokens", "list", "--limit", "1", stderr=stderr) as terminal:
        assert terminal.end() == 0
        if terminal.popen.stderr is not None:
            assert terminal.popen.stderr.read().decode() == words
            assert "There is more" not in terminal.seen
        else:
            assert terminal.seen.endswith(words)


@pytest.mark.e2e
def test_rich_is_not_loaded_for_a_pipe() -> None:
    code = (
        "import sys\nfrom tollgate.cli import show\nshow.table(['A'], [['b']])\nshow.fields([('a', 'b')])\n"
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_colour_follows_the_column_not_the_text() -> None:
    assert show.colour_of("STATE", "down") == "red"
    assert show.colour_of("STATUS", "431") == "red"
    assert (show.colour_of("REQUESTS", "431"), show.colour_of("NAME", "up")) == ("", "")
