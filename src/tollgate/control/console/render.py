"""Templates, their filters, the style sheet, the script and the favicon, read from the package.

The content of a page is its handler's.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import MediaType, Response
from litestar.datastructures import Cookie
from markupsafe import Markup, escape
from msgspec import Struct

from tollgate.control.console.forms import Form, FormFault, fault_of
from tollgate.control.problems import Problem
from tollgate.core import pricing

_FOLDER = Path(__file__).parent
_COMMAND = re.compile("`([^`]+)`")
_STEPS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


class Asset(Struct, frozen=True):
    """A static file with its hash in the URL: cached for ever, and replaced by an upgrade."""

    path: str
    media_type: str
    content: bytes
    packed: bytes
    url: str


def _asset(name: str, media_type: str) -> Asset:
    content = (_FOLDER / "style" / name).read_bytes()
    version = hashlib.sha256(content).hexdigest()[:12]
    return Asset(
        f"/{name}", media_type, content, gzip.compress(content, 9, mtime=0), f"/console/{name}?v={version}"
    )


STYLE = _asset("style.css", "text/css")
SCRIPT = _asset("script.js", "text/javascript")
FAVICON = _asset("favicon.svg", "image/svg+xml")


def moment(seconds: float) -> str:
    """A time for people: `2026-11-15 06:44 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def exact(seconds: float) -> str:
    """A time to the millisecond: `2026-11-15 06:44:12.207 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def clock(seconds: float, now: float | None = None) -> str:
    """A time of today to the millisecond; of another day to the second, with the day."""
    moment = datetime.fromtimestamp(seconds, UTC)
    if now is not None and moment.date() != datetime.fromtimestamp(now, UTC).date():
        return f"{moment.day} {moment:%b %H:%M:%S}"
    return moment.strftime("%H:%M:%S.%f")[:-3]


def month(text: str) -> str:
    """A month for people: `November 2026`."""
    return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).strftime("%B %Y")


def ago(seconds: float, now: float) -> str:
    """How long ago something was, or how long until it is: `3 minutes ago`, `in 2 days`."""
    passed = abs(now - seconds)
    for length, name in _STEPS:
        if passed >= length:
            count = int(passed // length)
            words = f"{count} {name}{'' if count == 1 else 's'}"
            return f"{words} ago" if seconds <= now else f"in {words}"
    return "just now" if seconds <= now else "in less than a minute"


def number(value: float) -> str:
    return f"{value:,}"


def money(micros: int) -> str:
    return f"${pricing.cents(micros) / 100:,.2f}"


def percent(share: float) -> str:
    """A share of one: `99.94 %`."""
    return f"{100 * share:.0f} %" if share in (0, 1) else f"{100 * share:.2f} %"


def millis(micros: float) -> str:
    """A duration: `0.4 ms`, `18 ms`, `2,310 ms`."""
    value = micros / 1000
    return f"{value:.1f} ms" if value < 10 else f"{value:,.0f} ms"


def size(count: int) -> str:
    if count >= 10 << 20:
        return f"{count / (1 << 20):,.0f} MiB"
    return f"{count:,} B" if count < 10_000 else f"{count / 1024:,.0f} KiB"


def prose(text: str) -> Markup:
    """Text with commands in backticks, as in problem details."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


_templates = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals.update(style_url=STYLE.url, script_url=SCRIPT.url, favicon_url=FAVICON.url)
_templates.filters.update(
    moment=moment, exact=exact, iso=iso, clock=clock, month=month, ago=ago, prose=prose, number=number,
    money=money, percent=percent, millis=millis, size=size,
)  # fmt: skip


def html(template: str, **values: object) -> str:
    return _templates.get_template(template).render(**values)


def page(
    template: str,
    *,
    problem: Problem | None = None,
    form: Form | None = None,
    fault: FormFault | None = None,
    status: int = 200,
    who: str | None = None,
    headers: Mapping[str, str] | None = None,
    cookies: Iterable[Cookie] = (),
    **values: object,
) -> Response[str]:
    """Render a page; with a problem, also the errors and the input of its form.

    `who` is the address of the person who is signed in, for the head of the page.
    """
    if problem is not None:
        status, headers, fault = problem.status, problem.headers, fault or fault_of(problem, form)
    return Response(
        html(template, who=who, fault=fault, **values),
        status_code=status,
        media_type=MediaType.HTML,
        headers=dict(headers or {}),
        cookies=list(cookies),
    )


def to(path: str, cookies: Iterable[Cookie] = ()) -> Response[str]:
    """Redirect the browser to another page, which it fetches by GET."""
    return Response(
        "", status_code=303, media_type=MediaType.HTML, headers={"Location": path}, cookies=list(cookies)
    )
