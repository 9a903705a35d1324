"""Members of a team under any sequence of actions: always an owner, and non-members learn nothing."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.control.services.harness import ACME, ALL, PEOPLE, ROLES, Harness
from tests.control.services.harness import settings as harness_settings

from tollgate.api.members import InvitationLink, NewInvitation, RoleChange
from tollgate.control.problems import (
    AlreadyMember,
    InvitationForOther,
    LastOwner,
    NoSuchTeam,
    NotFound,
    Problem,
    RoleNeeded,
)
from tollgate.control.service_context import Actor

people = st.sampled_from(sorted(PEOPLE))
roles = st.sampled_from(ROLES)
# What a member may get; a non-member gets NoSuchTeam and nothing else.
MEMBERS_HEAR = (AlreadyMember, LastOwner, NotFound, RoleNeeded)


class Membership(RuleBasedStateMachine):
    """The model: who has which role. The store must agree, and every refusal must fit."""

    template: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.Runner()
        self.harness = Harness(self.template, self.folder, self.loop, harness_settings())
        self.actors: dict[str, Actor] = {who: self.harness.actor(who) for who in PEOPLE}
        self.roles = {role: role for role in ROLES}
        self.links: list[tuple[str, str]] = []

    def teardown(self) -> None:
        self.harness.close()
        self.loop.close()
        shutil.rmtree(self.folder)

    def attempt(self, who: str, work: Any) -> bool:
        try:
            self.harness.do(work)
        except Problem as problem:
            expected = MEMBERS_HEAR if who in self.roles else (NoSuchTeam,)
            assert isinstance(problem, expected), (who, problem)  # noqa: PT017 - which one depends on the actor
            return False
        assert who in self.roles
        return True

    def membership(self, who: str) -> str:
        account = self.actors[who].id
        member = self.harness.write(lambda records: records.members.find(team_id=ACME.id, account_id=account))
        return member.id if member else f"mem_{who}"

    @rule(who=people, whom=people, role=roles)
    def set_role(self, who: str, whom: str, role: str) -> None:
        if self.attempt(
            who,
            self.harness.plane.teams.set_role(self.actors[who], "acme", self.membership(whom), RoleChange(role)),
        ):
            assert self.roles[who] == "owner" or "owner" not in {role, self.roles[whom]}
            self.roles[whom] = role

    @rule(who=people, whom=people)
    def remove(self, who: str, whom: str) -> None:
        if self.attempt(who, self.harness.plane.teams.remove(self.actors[who], "acme", self.membership(whom))):
            assert who == whom or self.roles[who] in {"owner", "admin"}
            assert who == whom or self.roles[who] == "owner" or self.roles[whom] != "owner"
            del self.roles[whom]

    @rule(who=people, whom=people, role=roles)
    def invite(self, who: str, whom: str, role: str) -> None:
        async def work() -> None:
            made = await self.harness.plane.invitations.create(
                self.actors[who], "acme", NewInvitation(PEOPLE[whom], role)
            )
            self.links.append((made.link, role))

        if self.attempt(who, work()):
            assert self.roles[who] == "owner" or (self.roles[who] == "admin" and role != "owner")

    @rule(who=people, data=st.data())
    def accept(self, who: str, data: st.DataObject) -> None:
        if not self.links:
            return
        link, role = data.draw(st.sampled_from(self.links))
        try:
            self.harness.do(self.harness.plane.invitations.accept(self.actors[who], InvitationLink(link)))
        except (AlreadyMember, InvitationForOther, NotFound):
            return
        assert who not in self.roles
        self.roles[who] = role

    @rule(who=people)
    def look(self, who: str) -> None:
        self.attempt(who, self.harness.plane.tokens.list(self.actors[who], "acme", ALL))

    @invariant()
    def agrees_and_has_an_owner(self) -> None:
        rows = self.harness.write(lambda records: records.members.page(100, team_id=ACME.id))
        assert {row.account_id: row.role for row in rows} == {
            f"acc_{who}": role for who, role in self.roles.items()
        }
        assert "owner" in self.roles.values()


def test_team_always_has_an_owner_and_outsiders_learn_nothing(template: Path) -> None:
    Membership.template = template
    run_state_machine_as_test(
        Membership,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
