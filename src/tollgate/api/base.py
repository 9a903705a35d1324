"""What all definitions of the API share: routes, pages, ids and times, what is shown once."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

Answer_co = TypeVar("Answer_co", covariant=True)
Item = TypeVar("Item")
Json = dict[str, Any]

# A month of UTC, from 1970 on, and short of 9999, whose last month has no end that `datetime` can represent.
MONTH = "^(19[7-9][0-9]|2[0-9]{3})-(0[1-9]|1[0-2])$"

Moment = Annotated[datetime, Meta(tz=True)]
Id = Annotated[str, Meta(description="Its id.")]
CreatedAt = Annotated[Moment, Meta(description="When it was created.")]
CreatedBy = Annotated[str, Meta(description="Who created it: an email, or `operator`.")]
Secret = Annotated[str | None, Meta(description="Shown once: null if an `Idempotency-Key` is repeated.")]
Next = Annotated[str | None, Meta(description="Give it as `after` for the next page; null at the end.")]

# Parameters of queries.
MAX_ROWS, USUAL_ROWS = 1_000, 100
Limit = Annotated[
    int,
    Meta(
        description="How many at most.",
        examples=[USUAL_ROWS],
        extra_json_schema={"minimum": 1, "maximum": MAX_ROWS},
    ),
]
After = Annotated[str | None, Meta(description="Where to continue: the `next` of the previous page.")]
Since = Annotated[
    str | None,
    Meta(
        description="One or more of <number><s|m|h|d|w>, such as 30m, 24h or 1h30m. Only entries of this last "
        "time are listed. An `after` keeps the start of its first part.",
        examples=["30m", "1h", "24h"],
        extra_json_schema={"pattern": "^([0-9]{1,9}[smhdw]){1,20}$"},
    ),
]
Until = Annotated[
    Moment | None, Meta(description="Only entries before this time.", examples=["2026-11-15T06:44:44Z"])
]

JSON, HTML, CSV = "application/json", "text/html", "text/csv"
JSON_LINES, ND_JSON = "application/jsonl", "application/x-ndjson"


def text(description: str, example: str, min_length: int = 1, max_length: int = 100) -> Meta:
    """Describe a text, and its length."""
    return Meta(
        description=description,
        examples=[example],
        extra_json_schema={"minLength": min_length, "maxLength": max_length},
    )


def count(description: str, example: int, minimum: int, maximum: int) -> Meta:
    """Describe a whole number, and its bounds."""
    return Meta(
        description=description, examples=[example], extra_json_schema={"minimum": minimum, "maximum": maximum}
    )


def choice(description: str, values: Iterable[str]) -> Meta:
    """Describe a text that is one of these."""
    return Meta(description=description, extra_json_schema={"enum": [str(each) for each in values]})


def several(description: str, example: str, max_items: int) -> Meta:
    """Describe a list, and how many it may have."""
    return Meta(description=description, examples=[[example]], extra_json_schema={"maxItems": max_items})


class Confidential(Struct, frozen=True):
    """A command or an answer with a secret, which its repr omits."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """An empty object, or no body at all."""


class Page(Struct, Generic[Item], frozen=True):
    """A page of a list."""

    items: list[Item]
    next: Next = None


class Route(Struct, Generic[Answer_co], frozen=True):
    """An operation of the API: served by `control/api`, called by the tool."""

    method: str
    path: str
    """Below `/api/v1`, such as `/teams/{team}`."""
    answer: type[Answer_co]
    """The type of a successful answer; `NoneType` if it has no body."""
    creates: bool = False
    """Whether it honours `Idempotency-Key`."""
    may_be_empty: bool = False
    """Whether it may also answer 204."""
    media_types: tuple[str, ...] = (JSON,)
    """Media types of the answer. Those other than JSON are text."""


@functools.cache
def members(kind: type[Struct]) -> dict[str, Json]:
    """Return the JSON Schema of each member of a type, from which forms, options and refusals are built."""
    _, schemas = msgspec.json.schema_components([kind])
    found: dict[str, Json] = schemas[kind.__name__]["properties"]
    return found


def without_null(schema: Json) -> Json:
    """Return the schema of a parameter, which may be omitted but is never null."""
    given = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    if not given:
        return schema
    return {**given[0], **{key: value for key, value in schema.items() if key not in ("anyOf", "default")}}


def kind_of(schema: Json) -> str:
    """Return the type of a member other than null: `boolean`, `integer`, `array`, `date-time`, `string`."""
    given = next(each for each in schema.get("anyOf", [schema]) if each.get("type") != "null")
    return str(given.get("format") or given.get("type", "object"))


def is_nullable(schema: Json) -> bool:
    return {"type": "null"} in schema.get("anyOf", ())
