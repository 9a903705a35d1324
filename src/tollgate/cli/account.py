"""`tollgate account`: the account, its password and address, personal access tokens and second factors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tollgate.cli import show
from tollgate.cli.failures import Failure, NotFoundFailure
from tollgate.cli.lazy import Group
from tollgate.cli.options import Duration, confirm, logged_in, page_options, yes_option
from tollgate.cli.settings_options import lines
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from tollgate.api import base
    from tollgate.api import factors as factors_api
    from tollgate.api import me as api
    from tollgate.cli import answers
    from tollgate.cli.session import Session
else:
    # Not for help.
    api, base, factors_api = (LazyModule(f"tollgate.api.{name}") for name in ("me", "base", "factors"))
    answers = LazyModule("tollgate.cli.answers")

_DAY = 86_400
_MAX_LINE = 4096


@click.group(cls=Group, epilog="Example: tollgate account tokens create ci --expires 90d")
def account() -> None:
    """Your account and its personal access tokens."""


@account.command("show", epilog="Example: tollgate account show --json")
@logged_in
def show_(session: Session) -> None:
    """Show your account."""
    answer = session.client.call(api.SHOW)
    me = answer.value
    session.thing(answer.raw, [*lines(me, but=("has_password", "login")), ("password", me.has_password)])


@account.command(epilog="Example: tollgate account password --end-passkeys")
@click.option("--keep-sessions", is_flag=True, help="Do not end the other sessions of the console.")
@click.option("--keep-devices", is_flag=True, help="Do not end the other logins of the tool.")
@click.option("--keep-tokens", is_flag=True, help="Do not revoke personal access tokens.")
@click.option("--end-passkeys", is_flag=True, help="Remove all passkeys.")
@logged_in
def password(
    session: Session, *, keep_sessions: bool, keep_devices: bool, keep_tokens: bool, end_passkeys: bool
) -> None:
    """Change your password. All other logins end, unless you keep some.

    Without a terminal, the current and the new one are read from standard input, a line each.
    """
    if sys.stdin.isatty():
        current = click.prompt("Current password", hide_input=True, err=True)
        new = click.prompt("New password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        current, new = _line(), _line()
    if not current or not new:
        raise Failure("Standard input needs two lines: the current password and the new one.")
    wanted = api.PasswordChange(current, new, not keep_sessions, not keep_devices, not keep_tokens, end_passkeys)
    session.client.call(api.CHANGE_PASSWORD, body=wanted)
    kept = keep_sessions or keep_devices or keep_tokens
    ended = "other logins have ended, but for those that you keep" if kept else "all other logins have ended"
    session.done({"changed": True}, f"Your password was changed, and {ended}.")


@account.command(epilog="Example: tollgate account email ada@example.com")
@click.argument("address")
@logged_in
def email(session: Session, address: str) -> None:
    """Change your address to ADDRESS.

    If the service sends mail, a link is sent to ADDRESS: open it, or pass it to `account confirm-email`. Without a
    terminal, your password is read from standard input.
    """
    current = click.prompt("Password", hide_input=True, err=True) if sys.stdin.isatty() else _line()
    answer = session.client.call(api.CHANGE_EMAIL, body=api.NewEmail(address, current))
    found, text = answer.value, f"Your address is {answer.value.email} now."
    if found.mailed_to:
        text = f"A link was sent to {found.mailed_to}. Your address is {found.email} until it is opened."
    session.done(answer.raw, text)


@account.command("confirm-email", epilog="Example: tollgate account confirm-email LINK")
@click.argument("link")
@logged_in
def confirm_email(session: Session, link: str) -> None:
    """Confirm your new address with the LINK that was mailed to it."""
    answer = session.client.call(api.CONFIRM_EMAIL, body=api.EmailLink(link))
    session.done(answer.raw, f"Your address is {answer.value.email} now.")


def _line() -> str:
    return sys.stdin.readline(_MAX_LINE).rstrip("\r\n")


@account.group(cls=Group, epilog="Example: tollgate account tokens create ci --expires 90d")
def tokens() -> None:
    """Personal access tokens: logins for CI, by TOLLGATE_TOKEN."""


@tokens.command(epilog="Example: tollgate account tokens create ci --expires 90d")
@click.argument("name")
@click.option(
    "--expires",
    type=Duration(),
    metavar="DURATION",
    help="In whole days, such as 30d; at most 365d. Default: 90d.",
)
@click.option("--never-expires", is_flag=True, help="Valid until it is deleted.")
@click.option("--for-team", metavar="TEAM", help="Only for this team.")
@click.option("--read-only", is_flag=True, help="Without the right to change anything.")
@logged_in
def create(
    session: Session, name: str, expires: int | None, never_expires: bool, for_team: str | None, read_only: bool
) -> None:
    """Create a personal access token called NAME. Its secret is shown once."""
    given: dict[str, Any] = {}
    if never_expires:
        if expires is not None:
            raise click.UsageError("--expires and --never-expires exclude each other: give one of them.")
        given["expires_in_days"] = None
    if expires is not None:
        if expires % _DAY or not _DAY <= expires <= api.MAX_DAYS * _DAY:
            raise click.UsageError(f"--expires must be whole days, 1d to {api.MAX_DAYS}d.")
        given["expires_in_days"] = expires // _DAY
    wanted = api.NewPersonalToken(name, team=for_team, read_only=read_only, **given)
    answer = session.client.call(api.CREATE_TOKEN, body=wanted)
    made = answer.value
    if made.secret is None:
        raise Failure(
            f'Token "{made.name}" ({made.id}) was created, but the connection broke before its secret arrived, '
            f"and it is shown only once. Run: tollgate account tokens delete {made.id}, then create it again."
        )
    session.thing(answer.raw, [("id", made.id), ("name", made.name), ("secret", made.secret)])
    show.note("Save the secret now: it is shown only once. For CI: TOLLGATE_TOKEN=<secret>")


@tokens.command("list", epilog="Example: tollgate account tokens list")
@page_options
@logged_in
def list_(session: Session, limit: int, after: str | None) -> None:
    """List your personal access tokens."""
    whole = session.client.call(api.LIST_LOGINS, limit=limit, after=after)
    # The list has logins of every kind.
    mine = [login for login in whole.value.items if login.kind == "personal"]
    ids = {login.id for login in mine}
    raw = {"items": [item for item in whole.raw["items"] if item["id"] in ids]}
    rows = [(login.id, login.name, login.created_at, login.last_used_at, login.expires_at) for login in mine]
    session.page(
        answers.ApiAnswer(base.Page(mine, whole.value.next), raw),
        ("ID", "NAME", "CREATED", "LAST USED", "EXPIRES"),
        rows,
        empty="No personal access tokens yet. Create one: tollgate account tokens create NAME",
    )


@tokens.command(epilog="Example: tollgate account tokens delete log_2bHs7KpQ9wEr5tYu")
@click.argument("token_id", metavar="ID")
@yes_option
@logged_in
def delete(session: Session, token_id: str, yes: bool) -> None:
    """Delete a personal access token. Programs that use it lose access."""
    # The route that deletes it would also end a login of another kind.
    logins = session.client.every(api.LIST_LOGINS)
    found = next((login for login in logins if login.id == token_id and login.kind == "personal"), None)
    if found is None:
        raise NotFoundFailure(f"There is no personal access token {token_id}. See: tollgate account tokens list")
    confirm(f'Delete personal access token "{show.clean(found.name)}" ({found.id})?', yes)
    session.client.call(api.END_LOGIN, found.id)
    session.deleted(found.id, f"Personal access token {found.id} is deleted.")


@account.command(epilog="Example: tollgate account factors")
@logged_in
def factors(session: Session) -> None:
    """Show your passkeys, and whether a code is required. Passkeys are created in the console."""
    answer = session.client.call(factors_api.SHOW)
    found = answer.value
    session.thing(
        answer.raw, [("codes", "on" if found.totp else "off"), ("recovery codes left", found.recovery_codes_left)]
    )
    if not session.as_json and found.passkeys:
        click.echo()
        rows = [(each.id, each.name, each.created_at, each.last_used_at) for each in found.passkeys]
        show.table(("PASSKEY", "NAME", "CREATED", "LAST USED"), rows)


@account.command("remove-passkey", epilog="Example: tollgate account remove-passkey fac_…")
@click.argument("passkey")
@yes_option
@logged_in
def remove_passkey(session: Session, passkey: str, yes: bool) -> None:
    """Remove one of your passkeys."""
    confirm(f"Remove the passkey {passkey}?", yes)
    session.client.call(factors_api.REMOVE_PASSKEY, passkey)
    session.deleted(passkey, f"The passkey {passkey} is removed.")


@account.command(epilog="Example: tollgate account codes on")
@click.argument("switch", type=click.Choice(["on", "off"]))
@logged_in
def codes(session: Session, switch: str) -> None:
    """Turn the authenticator app on or off. With it, signing in requires a code after the password.

    Without a terminal, the code is read from standard input.
    """
    if switch == "off":
        session.client.call(factors_api.END_TOTP, body=_code())
        session.done({"totp": False}, "Codes are off: the password is enough to sign in.")
        return
    made = session.client.call(factors_api.BEGIN_TOTP).value
    show.note(f"Add this to your authenticator app, then enter the code it shows:\n  {made.secret}\n  {made.uri}")
    answer = session.client.call(factors_api.CONFIRM_TOTP, body=_code())
    if session.as_json:
        show.as_json(answer.raw)
        return
    show.note("Codes are on. Keep these recovery codes; each works once:")
    for code in answer.value.recovery_codes:
        click.echo(code)


def _code() -> factors_api.Code:
    given: str = click.prompt("Code", err=True) if sys.stdin.isatty() else _line()
    if not given:
        raise Failure("Standard input needs a code.")
    return factors_api.Code(given)


@account.command("delete", epilog="Example: tollgate account delete")
@yes_option
@logged_in
def delete_account(session: Session, yes: bool) -> None:
    """Delete your account. Teams of which you are the only owner must be handed over or deleted first."""
    me = session.client.call(api.SHOW).value
    confirm(f"Delete the account of {me.email}?", yes)
    session.client.call(api.DELETE)
    session.deleted(me.id, f"The account of {me.email} is deleted.")
