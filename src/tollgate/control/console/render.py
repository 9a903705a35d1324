"""Templates and the style sheet, read from the package. What stands on a page is decided by whoever renders it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import MediaType, Response
from litestar.datastructures import Cookie
from markupsafe import Markup, escape

_FOLDER = Path(__file__).parent
_COMMAND = re.compile("`([^`]+)`")
_STEPS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))

STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")
# Named by its content: an upgrade is seen at once, and until then nobody asks again.
STYLE_URL = f"/console/style.css?v={hashlib.sha256(STYLE.encode()).hexdigest()[:12]}"


def moment(seconds: float) -> str:
    """A time for people: `2026-11-15 06:44 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def ago(seconds: float, now: float) -> str:
    """How long ago something was: `3 minutes ago`."""
    passed = now - seconds
    for length, name in _STEPS:
        if passed >= length:
            count = int(passed // length)
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return "just now"


def prose(text: str) -> Markup:
    """Words with commands in backticks, as problems write them."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


_templates = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals.update(style_url=STYLE_URL)
_templates.filters.update(moment=moment, ago=ago, prose=prose)


def page(
    template: str,
    *,
    status: int = 200,
    who: str | None = None,
    headers: Mapping[str, str] | None = None,
    cookies: Iterable[Cookie] = (),
    **values: object,
) -> Response[str]:
    """Render a page. `who` is the address of the person who is signed in, for the head of the page."""
    return Response(
        _templates.get_template(template).render(who=who, **values),
        status_code=status,
        media_type=MediaType.HTML,
        headers=dict(headers or {}),
        cookies=list(cookies),
    )


def to(path: str, cookies: Iterable[Cookie] = ()) -> Response[str]:
    """Send the browser to another page, which it gets whatever it did before."""
    return Response(
        "", status_code=303, media_type=MediaType.HTML, headers={"Location": path}, cookies=list(cookies)
    )
