"""Who may do what in a team: one table. The services check it; docs/reference/roles.md is generated from it."""

from __future__ import annotations

from enum import StrEnum

from tollgate.api.roles import Role as Role  # noqa: PLC0414 - for importers


class Action(StrEnum):
    """What a member may want to do, in words that complete "may"."""

    SEE_TEAM = "see the team"
    RENAME_TEAM = "rename the team"
    DELETE_TEAM = "delete the team"
    SEE_MEMBERS = "see the members"
    CHANGE_MEMBERS = "invite and remove members and set their roles"
    SEE_TOKENS = "see tokens"
    CHANGE_TOKENS = "create, change and delete tokens"
    SEE_DOMAINS = "see whitelisted domains"
    CHANGE_DOMAINS = "add, change and remove whitelisted domains"
    SEE_AUDIT = "read the audit log"
    SEE_LOGS = "read request logs"
    SEE_USAGE = "see usage"
    CHANGE_BILLING = "set the spending cap and alerts"
    SEE_INVOICES = "see invoices"


_ALL = frozenset(Role)
_BUILDERS = frozenset({Role.OWNER, Role.ADMIN, Role.DEVELOPER})
_LEADERS = frozenset({Role.OWNER, Role.ADMIN})
_PAYERS = _LEADERS | {Role.BILLING}

ALLOWED: dict[Action, frozenset[Role]] = {
    Action.SEE_TEAM: _ALL,
    Action.RENAME_TEAM: _LEADERS,
    Action.DELETE_TEAM: frozenset({Role.OWNER}),
    Action.SEE_MEMBERS: _ALL,
    Action.CHANGE_MEMBERS: _LEADERS,
    Action.SEE_TOKENS: _ALL,
    Action.CHANGE_TOKENS: _BUILDERS,
    Action.SEE_DOMAINS: _ALL,
    Action.CHANGE_DOMAINS: _BUILDERS,
    Action.SEE_AUDIT: _LEADERS,
    # Not for billing members: logs show the addresses of a team's users.
    Action.SEE_LOGS: _BUILDERS | {Role.VIEWER},
    Action.SEE_USAGE: _ALL,
    Action.CHANGE_BILLING: _PAYERS,
    Action.SEE_INVOICES: _PAYERS,
}


def allows(role: Role, action: Action) -> bool:
    return role in ALLOWED[action]


def holders(action: Action) -> list[Role]:
    """The roles that may do this, the most powerful first."""
    return [role for role in Role if role in ALLOWED[action]]


def may_change_member(mine: Role, theirs: Role) -> bool:
    """Whether a member may invite to, give or take away this role: only an owner touches owners."""
    # Compared by value: members keep their role as text, and identity would take "owner" for no owner.
    return allows(mine, Action.CHANGE_MEMBERS) and (mine == Role.OWNER or theirs != Role.OWNER)
