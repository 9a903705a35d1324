"""Answers: values as JSON, never cached, with an `ETag` if the resource has a version.

A few are pages for people.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import resources
from typing import Any, TypeVar

import msgspec
from jinja2 import Environment, StrictUndefined
from litestar import Response
from msgspec import Struct

from tollgate.api.base import Page
from tollgate.control.api.errors import NO_STORE
from tollgate.control.api.reading import JSON
from tollgate.control.service_context import ResultPage
from tollgate.control.versions import version_of

REPLAYED = "Idempotency-Replayed"
T = TypeVar("T")
P = TypeVar("P", bound=Page[Any])
Shape = TypeVar("Shape", bound=Struct)

_TIMES = ("_at", "_until")

Answer = Response[bytes]


class Versioned(Response[T]):
    """A resource with its version, for `If-Match`."""


def versioned(value: T, stored: Struct) -> Versioned[T]:
    """A resource, with the version of what is stored."""
    return Versioned(value, headers={**NO_STORE, "ETag": version_of(stored)})


def shown(value: Struct) -> Answer:
    return Response(msgspec.json.encode(value), media_type=JSON, headers=NO_STORE)


def unstored(value: T) -> Response[T]:
    """A resource without a version."""
    return Response(value, headers=NO_STORE)


def page_of(kind: type[P], found: ResultPage[Any], show: Callable[[Any], Struct]) -> Response[P]:
    return Response(kind(items=[show(each) for each in found.items], next=found.next), headers=NO_STORE)


def done() -> Response[Any]:
    return Response(b"", status_code=204, media_type=JSON, headers=NO_STORE)


def of(kind: type[Shape], stored: Struct, **members: Any) -> Shape:
    """Show what is stored: members that are not given are taken from it; nothing else of it is shown."""
    for name in kind.__struct_fields__:
        if name not in members:
            value = getattr(stored, name)
            members[name] = moment(value) if name.endswith(_TIMES) else value
    return kind(**members)


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


class StandalonePage:
    """A self-contained page: a template and its style, no script, nothing loaded."""

    def __init__(self, name: str, **filters: Callable[[Any], Any]) -> None:
        files = resources.files("tollgate.control.api")
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        environment.filters.update(filters)
        self._template = environment.from_string(files.joinpath(f"{name}.html").read_text("utf-8"))
        self._style = files.joinpath(f"{name}.css").read_text("utf-8")
        digest = base64.b64encode(hashlib.sha256(self._style.encode()).digest()).decode()
        self.headers = {
            "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }

    def render(self, **values: Any) -> bytes:
        return self._template.render(style=self._style, **values).encode()
