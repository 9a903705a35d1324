"""Teams: commands, answers and routes."""

from __future__ import annotations

from types import NoneType
from typing import Annotated

from msgspec import Meta, Struct

from tollgate.api.base import CreatedAt, Id, Moment, Page, Route
from tollgate.api.roles import Role

Name = Annotated[
    str,
    Meta(
        description="2 to 40 characters of a-z, 0-9 and hyphens. Unique.",
        examples=["my-team"],
        extra_json_schema={"pattern": "^[a-z0-9-]{2,40}$"},
    ),
]
RoleName = Annotated[
    str, Meta(description="One of the five roles.", examples=["developer"], extra_json_schema={"enum": list(Role)})
]


class NewTeam(Struct, frozen=True, forbid_unknown_fields=True):
    """A team to be created."""

    name: Name


class TeamChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What to change of a team."""

    name: Name


class Team(Struct, frozen=True):
    """A team, and the caller's role in it."""

    id: Id
    name: Name
    role: RoleName
    created_at: CreatedAt
    suspended_at: Annotated[
        Moment | None, Meta(description="Since when its calls are refused, by the operator; null: they are not.")
    ] = None
    suspended_reason: Annotated[str, Meta(description="Why the operator has suspended it.")] = ""


class TeamPage(Page[Team], frozen=True):
    """A page of the list of teams."""


CREATE = Route("POST", "/teams", Team, creates=True)
LIST = Route("GET", "/teams", TeamPage)
SHOW = Route("GET", "/teams/{team}", Team)
UPDATE = Route("PATCH", "/teams/{team}", Team)
DELETE = Route("DELETE", "/teams/{team}", NoneType)
