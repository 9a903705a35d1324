"""Options and parameter types that several commands share, and the decorators that open a session for them.

Loaded with every management command, also for its help: no slow import at the top.
"""

from __future__ import annotations

import datetime
import functools
import math
import re
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from click.shell_completion import CompletionItem

    from tollgate.api import tokens as tokens_api
    from tollgate.cli import session as sessions
    from tollgate.core import durations, months

    class ParamKind(click.ParamType[Any]):
        """Click's base of parameter types."""
else:
    sessions, tokens_api = LazyModule("tollgate.cli.session"), LazyModule("tollgate.api.tokens")
    durations, months = LazyModule("tollgate.core.durations"), LazyModule("tollgate.core.months")
    ParamKind = click.ParamType  # Click before 8.4 has no parameter here

F = TypeVar("F", bound="Callable[..., Any]")

# Characters that a shell needs no quotes for.
_COMPLETED = re.compile(r"[A-Za-z0-9_./-]{1,100}")
_TEAM_NAME = re.compile(r"[a-z0-9-]{2,40}")


def logged_in(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--json` to a command, and call it with the opened session."""

    @functools.wraps(command)
    def call(*, as_json: bool, team: str | None = None, **values: Any) -> None:
        with sessions.opened(team=team, as_json=as_json) as session:
            command(session, **values)

    return json_option(call)


def alone(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a group run by itself, or pass its `--team` and `--json` on; `what` its own options do."""
    passed = ("team", "as_json")

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**values: Any) -> None:
            ctx = click.get_current_context()
            name = ctx.invoked_subcommand
            if name is None:
                command(**values)
                return
            for option in ctx.command.params:
                key = option.name or ""
                if key not in passed and ctx.get_parameter_source(key) is ParameterSource.COMMANDLINE:
                    raise click.UsageError(f"{option.opts[0]} {what}; it does not go with {name!r}.", ctx)
            ctx.default_map = {name: {each: values[each] for each in passed if values[each]}}

        return call

    return wrap


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def config_option(command: F) -> F:
    return click.option(
        "--config",
        "config_file",
        metavar="FILE",
        help="Settings file. Default: $TOLLGATE_CONFIG, or tollgate.toml in this folder.",
    )(command)


def yes_option(command: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def overlap_option(what: str) -> Callable[[F], F]:
    """Add `--overlap` to a command that replaces a secret; `what` it is the time of."""

    def check(_ctx: click.Context, _param: click.Parameter, seconds: int) -> int:
        if seconds > tokens_api.MAX_OVERLAP:
            raise click.UsageError("--overlap can be 30d at most.")
        return seconds

    return click.option(
        "--overlap",
        type=Duration(),
        default="24h",
        show_default=True,
        metavar="DURATION",
        callback=check,
        help=f"{what}; at most 30d.",
    )


def page_options(command: F) -> F:
    """Add `--limit` and `--after` to a command."""
    limit = click.option(
        "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N", help="Rows at most."
    )
    after = click.option("--after", metavar="CURSOR", help="Continue after a page.")
    return limit(after(command))


def _completer(
    fetch: Callable[[sessions.Names], list[str]], allowed: re.Pattern[str]
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem[str] | str]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str] | str]:
        try:
            found = fetch(sessions.Names(ctx.params.get("team")))
        except Exception:  # noqa: BLE001 - a shell that completes must never see a failure
            return []
        return [name for name in found if name.startswith(incomplete) and allowed.fullmatch(name)]

    return complete


_complete_team = _completer(lambda names: names.teams, _TEAM_NAME)
complete_tokens = _completer(lambda names: names.tokens, _COMPLETED)
complete_networks = _completer(lambda names: names.networks, _COMPLETED)


def complete_months(
    ctx: click.Context,  # noqa: ARG001 - Click's signature
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem[str] | str]:
    today = datetime.datetime.now(datetime.UTC)
    return [month for month in months.last_months(f"{today:%Y-%m}", 12) if month.startswith(incomplete)]


def for_team(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--team` and `--json` to a command, and call it with the opened session."""
    help_text = "Default: $TOLLGATE_TEAM, else the login's."
    team = click.option("--team", metavar="TEAM", help=help_text, shell_complete=_complete_team)
    return team(logged_in(command))


def confirm(question: str, yes: bool) -> None:
    if not needs_confirmation(yes):
        return
    if not click.confirm(question, err=True):
        click.echo("Nothing was changed.", err=True)
        click.get_current_context().exit(1)


def needs_confirmation(yes: bool) -> bool:
    """Whether a deletion has to be confirmed: on a terminal, unless `--yes` is given."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


class Month(ParamKind):
    """A calendar month such as 2026-11."""

    name = "month"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not months.is_month(value):
            self.fail(f"{value!r} is not a month: write one such as 2026-11.", param, ctx)
        return str(value)


class Null:
    """A word such as `none` in place of a value, which removes the value."""


class OneOf(ParamKind):
    """A choice whose values are defined by the API, loaded when one is given or completed."""

    name = "choice"

    def __init__(self, words: Callable[[], Iterable[str]]) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # The default is valid: converting it loads nothing, for the help of subcommands.
        return value if param is not None and value == param.default else self._choice().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        return self._choice().shell_complete(ctx, param, incomplete)

    def _choice(self) -> click.Choice[str]:
        return click.Choice([str(word) for word in self._words()])


class ValueOrWord(ParamKind):
    """A value, or a word such as `none` that removes it. `parse` returns None for a text that is neither."""

    name = "value"

    def __init__(self, parse: Callable[[str], int | None], what: str, word: str = "none") -> None:
        self._parse = parse
        self._what = what
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Null:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]  # converted before
        if value == self._word:
            return Null()
        parsed = self._parse(value)
        if parsed is None:
            self.fail(f"{value!r} is neither {self._what} nor {self._word}.", param, ctx)
        return parsed


def whole_number(pattern: str) -> Callable[[str], int | None]:
    return lambda text: int(text) if re.fullmatch(pattern, text) else None


NUMBER_OR_NONE = ValueOrWord(whole_number("[1-9][0-9]{0,14}"), "a number above 0")


class Duration(ParamKind):
    """A duration such as 24h, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return durations.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Since(ParamKind):
    """A start: a duration before now, unchanged, or a time, which becomes a duration."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        ago = _seconds_ago(value, datetime.datetime.now(datetime.UTC))
        if ago is None:
            self.fail(f"{value!r} is neither a duration (30m, 24h, 7d) nor a time ({_TIMES}).", param, ctx)
        if ago < 0:
            self.fail(f"{value!r} is not in the past.", param, ctx)
        return str(value) if _moment(value) is None else f"{ago}s"


class Until(ParamKind):
    """An end: a time, unchanged, or a duration before now, which becomes a time."""

    name = "until"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        now = datetime.datetime.now(datetime.UTC)
        ago = _seconds_ago(value, now)
        if ago is None:
            self.fail(f"{value!r} is neither a time ({_TIMES}) nor a duration (30m, 24h, 7d).", param, ctx)
        moment = _moment(value) or now - datetime.timedelta(seconds=ago)
        return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_TIMES = "2026-11-15 or 2026-11-15T06:00:00Z"


def _seconds_ago(text: str, now: datetime.datetime) -> int | None:
    moment = _moment(text)
    try:
        return durations.parse(text) if moment is None else math.ceil((now - moment).total_seconds())
    except ValueError:
        return None


def _moment(text: str) -> datetime.datetime | None:
    """Parse a day (its start) or a time; UTC unless it has an offset."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


class Expiry(ParamKind):
    """An expiry: a duration from now, a day (its end, UTC), a time, or `never`."""

    name = "expiry"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime.datetime | Null:
        if isinstance(value, datetime.datetime | Null):
            return value
        if value == "never":
            return Null()
        now = datetime.datetime.now(datetime.UTC)
        moment = expiry(value, now)
        if moment is None:
            self.fail(f"{value!r} is neither a duration (30d), a day (2026-12-31) nor never.", param, ctx)
        if moment <= now:
            self.fail(f"{value!r} has passed already.", param, ctx)
        return moment


def expiry(text: str, now: datetime.datetime) -> datetime.datetime | None:
    """Parse an expiry; None for any other text."""
    try:
        return now + datetime.timedelta(seconds=durations.parse(text))
    except ValueError:
        pass
    except OverflowError:
        return None
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            # "Until that day" includes it.
            return datetime.datetime.fromisoformat(f"{text}T23:59:59+00:00")
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None
