"""The audit log: who changed what, when and from where."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from tollgate.api.base import ND_JSON, Moment, Page, Route, Since, Until, count, text

MAX_NUMBER = 2**31 - 1
MAX_EXPORTED = 1_000


class AuditQuery(Struct, frozen=True, kw_only=True):
    """Which entries to list; omitted members do not filter."""

    action: Annotated[str | None, text("Only this action.", "token.create", min_length=0, max_length=40)] = None
    actor: Annotated[
        str | None, text("Only changes by this person, by email.", "ada@example.com", min_length=0, max_length=254)
    ] = None
    object: Annotated[
        str | None,
        text("Only changes of this: its id, or its name at that time.", "ci", min_length=0, max_length=254),
    ] = None
    since: Since = None
    until: Until = None


class ExportQuery(Struct, frozen=True, kw_only=True):
    """Which entries to export."""

    after: Annotated[int, count("Only entries with a higher `number`.", 0, 0, MAX_NUMBER)] = 0
    limit: Annotated[int, count("How many at most.", MAX_EXPORTED, 1, MAX_EXPORTED)] = MAX_EXPORTED


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One change."""

    id: Annotated[str, Meta(description="The entry's id.")]
    at: Annotated[Moment, Meta(description="When it was made.")]
    actor: Annotated[str, Meta(description="Who did it: an email, or `operator`.")] = ""
    actor_id: Annotated[str | None, Meta(description="The id of that account.")] = None
    action: Annotated[str, Meta(description="What was done.", examples=["token.create"])]
    target: Annotated[str, Meta(description="The id of what was changed.")] = ""
    name: Annotated[str, Meta(description="Its name at that time.")] = ""
    details: Annotated[
        dict[str, Any], Meta(description="Further details; of a change, what differs `before` and `after`.")
    ] = {}
    address: Annotated[str, Meta(description="The client's address.")] = ""
    via: Annotated[str, Meta(description="`tool`, `personal:<name>`, `console` or `operator`.")] = ""


class AuditPage(Page[AuditEntry], frozen=True):
    """A page of the audit log."""


LIST = Route("GET", "/teams/{team}/audit", AuditPage)
EXPORT = Route("GET", "/teams/{team}/audit/export", str, media_types=(ND_JSON,))
OWN = Route("GET", "/me/audit", AuditPage)
