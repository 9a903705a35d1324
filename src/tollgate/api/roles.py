"""The roles of members. Without msgspec: the help of the tool lists them, and has to be quick."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A member's role in a team."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    BILLING = "billing"
    VIEWER = "viewer"
