"""The roles of members. Without msgspec: the tool's help lists them, and must be fast."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A member's role in a team."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    BILLING = "billing"
    VIEWER = "viewer"
