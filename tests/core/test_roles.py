"""Who may do what in a team: every cell of the table, written out."""

import pytest

from tollgate.core.roles import ALLOWED, Action, Role, allows, holders, may_change_member

CELLS = [
    (Role.OWNER, Action.SEE_TEAM, True),
    (Role.ADMIN, Action.SEE_TEAM, True),
    (Role.DEVELOPER, Action.SEE_TEAM, True),
    (Role.BILLING, Action.SEE_TEAM, True),
    (Role.VIEWER, Action.SEE_TEAM, True),
    (Role.OWNER, Action.RENAME_TEAM, True),
    (Role.ADMIN, Action.RENAME_TEAM, True),
    (Role.DEVELOPER, Action.RENAME_TEAM, False),
    (Role.BILLING, Action.RENAME_TEAM, False),
    (Role.VIEWER, Action.RENAME_TEAM, False),
    (Role.OWNER, Action.DELETE_TEAM, True),
    (Role.ADMIN, Action.DELETE_TEAM, False),
    (Role.DEVELOPER, Action.DELETE_TEAM, False),
    (Role.BILLING, Action.DELETE_TEAM, False),
    (Role.VIEWER, Action.DELETE_TEAM, False),
    (Role.OWNER, Action.SEE_MEMBERS, True),
    (Role.ADMIN, Action.SEE_MEMBERS, True),
    (Role.DEVELOPER, Action.SEE_MEMBERS, True),
    (Role.BILLING, Action.SEE_MEMBERS, True),
    (Role.VIEWER, Action.SEE_MEMBERS, True),
    (Role.OWNER, Action.CHANGE_MEMBERS, True),
    (Role.ADMIN, Action.CHANGE_MEMBERS, True),
    (Role.DEVELOPER, Action.CHANGE_MEMBERS, False),
    (Role.BILLING, Action.CHANGE_MEMBERS, False),
    (Role.VIEWER, Action.CHANGE_MEMBERS, False),
    (Role.OWNER, Action.SEE_TOKENS, True),
    (Role.ADMIN, Action.SEE_TOKENS, True),
    (Role.DEVELOPER, Action.SEE_TOKENS, True),
    (Role.BILLING, Action.SEE_TOKENS, True),
    (Role.VIEWER, Action.SEE_TOKENS, True),
    (Role.OWNER, Action.CHANGE_TOKENS, True),
    (Role.ADMIN, Action.CHANGE_TOKENS, True),
    (Role.DEVELOPER, Action.CHANGE_TOKENS, True),
    (Role.BILLING, Action.CHANGE_TOKENS, False),
    (Role.VIEWER, Action.CHANGE_TOKENS, False),
    (Role.OWNER, Action.SEE_DOMAINS, True),
    (Role.ADMIN, Action.SEE_DOMAINS, True),
    (Role.DEVELOPER, Action.SEE_DOMAINS, True),
    (Role.BILLING, Action.SEE_DOMAINS, True),
    (Role.VIEWER, Action.SEE_DOMAINS, True),
    (Role.OWNER, Action.CHANGE_DOMAINS, True),
    (Role.ADMIN, Action.CHANGE_DOMAINS, True),
    (Role.DEVELOPER, Action.CHANGE_DOMAINS, True),
    (Role.BILLING, Action.CHANGE_DOMAINS, False),
    (Role.VIEWER, Action.CHANGE_DOMAINS, False),
    (Role.OWNER, Action.SEE_AUDIT, True),
    (Role.ADMIN, Action.SEE_AUDIT, True),
    (Role.DEVELOPER, Action.SEE_AUDIT, False),
    (Role.BILLING, Action.SEE_AUDIT, False),
    (Role.VIEWER, Action.SEE_AUDIT, False),
    (Role.OWNER, Action.SEE_LOGS, True),
    (Role.ADMIN, Action.SEE_LOGS, True),
    (Role.DEVELOPER, Action.SEE_LOGS, True),
    (Role.BILLING, Action.SEE_LOGS, False),
    (Role.VIEWER, Action.SEE_LOGS, True),
    (Role.OWNER, Action.SEE_USAGE, True),
    (Role.ADMIN, Action.SEE_USAGE, True),
    (Role.DEVELOPER, Action.SEE_USAGE, True),
    (Role.BILLING, Action.SEE_USAGE, True),
    (Role.VIEWER, Action.SEE_USAGE, True),
    (Role.OWNER, Action.CHANGE_BILLING, True),
    (Role.ADMIN, Action.CHANGE_BILLING, True),
    (Role.DEVELOPER, Action.CHANGE_BILLING, False),
    (Role.BILLING, Action.CHANGE_BILLING, True),
    (Role.VIEWER, Action.CHANGE_BILLING, False),
    (Role.OWNER, Action.SEE_INVOICES, True),
    (Role.ADMIN, Action.SEE_INVOICES, True),
    (Role.DEVELOPER, Action.SEE_INVOICES, False),
    (Role.BILLING, Action.SEE_INVOICES, True),
    (Role.VIEWER, Action.SEE_INVOICES, False),
]

# One's own role, the role that is given, taken away or invited to.
MEMBERS = [
    (Role.OWNER, Role.OWNER, True),
    (Role.OWNER, Role.ADMIN, True),
    (Role.OWNER, Role.DEVELOPER, True),
    (Role.OWNER, Role.BILLING, True),
    (Role.OWNER, Role.VIEWER, True),
    (Role.ADMIN, Role.OWNER, False),
    (Role.ADMIN, Role.ADMIN, True),
    (Role.ADMIN, Role.DEVELOPER, True),
    (Role.ADMIN, Role.BILLING, True),
    (Role.ADMIN, Role.VIEWER, True),
    (Role.DEVELOPER, Role.OWNER, False),
    (Role.DEVELOPER, Role.ADMIN, False),
    (Role.DEVELOPER, Role.DEVELOPER, False),
    (Role.DEVELOPER, Role.BILLING, False),
    (Role.DEVELOPER, Role.VIEWER, False),
    (Role.BILLING, Role.OWNER, False),
    (Role.BILLING, Role.ADMIN, False),
    (Role.BILLING, Role.DEVELOPER, False),
    (Role.BILLING, Role.BILLING, False),
    (Role.BILLING, Role.VIEWER, False),
    (Role.VIEWER, Role.OWNER, False),
    (Role.VIEWER, Role.ADMIN, False),
    (Role.VIEWER, Role.DEVELOPER, False),
    (Role.VIEWER, Role.BILLING, False),
    (Role.VIEWER, Role.VIEWER, False),
]


@pytest.mark.parametrize(("role", "action", "allowed"), CELLS)
def test_cell_of_the_table(role: Role, action: Action, allowed: bool) -> None:
    assert allows(role, action) is allowed
    assert (role in holders(action)) is allowed


@pytest.mark.parametrize(("mine", "theirs", "allowed"), MEMBERS)
def test_cell_of_who_may_change_whom(mine: Role, theirs: Role, allowed: bool) -> None:
    assert may_change_member(mine, theirs) is allowed


@pytest.mark.parametrize(("mine", "theirs", "allowed"), MEMBERS)
def test_role_as_it_is_kept_counts_like_the_role(mine: Role, theirs: Role, allowed: bool) -> None:
    """A member's role comes out of the store as text; that must not change any right."""
    text_mine, text_theirs = str(mine.value), str(theirs.value)
    assert may_change_member(text_mine, text_theirs) is allowed  # type: ignore[arg-type]


def test_every_cell_is_tested_once() -> None:
    assert len(CELLS) == len({(role, action) for role, action, _ in CELLS}) == len(Role) * len(Action)
    assert len(MEMBERS) == len({(mine, theirs) for mine, theirs, _ in MEMBERS}) == len(Role) ** 2
    assert set(ALLOWED) == set(Action)


def test_roles_are_the_five_of_the_specification() -> None:
    assert [role.value for role in Role] == ["owner", "admin", "developer", "billing", "viewer"]


@pytest.mark.parametrize("name", ["", "Owner", "root", "owner ", "member"])
def test_unknown_role_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid Role"):
        Role(name)


def test_roles_are_listed_from_most_to_least_rights() -> None:
    assert holders(Action.CHANGE_TOKENS) == ["owner", "admin", "developer"]
    assert holders(Action.SEE_AUDIT) == ["owner", "admin"]
    assert holders(Action.SEE_TEAM) == ["owner", "admin", "developer", "billing", "viewer"]
