"""The OpenAPI 3.1 document, generated from the routes: a route without a description fails at start.

Litestar's own generator is not used: it describes neither strict bodies, problem details and their reasons, nor
the headers of answers. msgspec, which also decodes and encodes the types, turns them into JSON Schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.routes import BaseRoute, HTTPRoute
from msgspec import Struct

from tollgate import __version__
from tollgate.api.base import Json
from tollgate.control.api.errors import PROBLEM, InternalProblem, RequestTooLarge, WrongMediaType
from tollgate.control.api.oauth_types import OAuthProblem
from tollgate.control.api.operations import OPERATION, TAGS, Operation
from tollgate.control.api.reading import FORM, JSON
from tollgate.control.api.render import REPLAYED
from tollgate.control.problems import (
    ChangedMeanwhile,
    InvalidInput,
    KeyReused,
    LoginExpired,
    NoSuchTeam,
    NotFound,
    NotLoggedIn,
    PersonalTokenRefused,
    Problem,
    RequestRunning,
    StoreAway,
    TooManyRequests,
)
from tollgate.control.service_context import MAX_ROWS, USUAL_ROWS

# Paths of the API; the console's pages are not documented.
API_PATHS = ("/api/", "/.well-known/")
_METHODS = ("GET", "POST", "PATCH", "DELETE")
_REF = "#/components/schemas/{name}"

ABOUT = """\
Everything that the console and the command-line tool can do is available here.

**Credentials.** `Authorization: Bearer <token>`: an access token of the tool (`tga_…`) or a personal access token
(`tgp_…`).

**Bodies** are JSON in UTF-8; unknown members are refused. Times are RFC 3339 in UTC.

**Errors** are problem details (RFC 9457); `reason` identifies them, `detail` contains what to do next. The proxy
in front of the API may also answer 408, 413, 502, 503 and 504 in this form. Every answer has an `X-Request-Id`.

**Lists** are paginated: give `next` as `after` for the next page.

**Creating** is safe to repeat within 24 hours with the same `Idempotency-Key`; the repeated answer has the header
`Idempotency-Replayed` and no secret. **Changing** is safe with `If-Match`, which takes the `ETag` of what was
read.

**Rates** are limited by credential and client address (429 `rate_limited`, with `Retry-After`); proofs of domains
and searches in logs count for several requests.
"""

_PATH_PARAMETERS = {
    "team": "A team's name or id.",
    "login": "A login's id, `log_…`.",
    "member": "A member's id, `mem_…`.",
    "invitation": "An invitation's id, `inv_…`.",
    "token": "A token's id, `tok_…`.",
    "domain": "An entry's id, `dom_…`.",
    "name": "A team's name or id.",
    "entry": "An entry's id, `ent_…`.",
    "format": "`csv` or `jsonl`.",
    "factor": "A passkey's id, `fac_…`.",
    "month": "A calendar month in UTC, `2026-11`.",
}

_HEADERS: dict[str, Json] = {
    "X-Request-Id": {"description": "Identifies this request in logs.", "schema": {"type": "string"}},
    "ETag": {"description": "The version of what is shown, for `If-Match`.", "schema": {"type": "string"}},
    REPLAYED: {
        "description": "Present if an earlier request with this key had created it.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 0}},
    "WWW-Authenticate": {"description": "Requests a bearer token.", "schema": {"type": "string"}},
}

_PROBLEM_SCHEMA: Json = {
    "title": "Problem",
    "description": "Problem details (RFC 9457). Some reasons have members of their own.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "const": "about:blank"},
        "title": {"type": "string", "description": "The name of the status."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened and what to do next."},
        "reason": {"type": "string", "description": "Which problem it is, for programs."},
        "request_id": {"type": "string"},
        "field": {
            "type": "string",
            "description": "Which member, parameter or header is wrong; the first of `errors`.",
        },
        "errors": {
            "type": "array",
            "description": "Everything that is wrong with the body or the query.",
            "items": {
                "type": "object",
                "properties": {
                    "field": {"type": "string", "description": "The member, parameter or header."},
                    "detail": {"type": "string", "description": "What it accepts."},
                },
                "required": ["field", "detail"],
            },
        },
        "retry_after": {"type": "integer", "description": "Seconds to wait."},
    },
    "required": ["type", "title", "status", "detail", "reason", "request_id"],
    "additionalProperties": True,
}


def document(routes: Iterable[BaseRoute], base_url: str) -> Json:
    found = sorted(_operations(routes), key=_order)
    refs, schemas = _schemas({each.takes for *_, each in found} - {None})
    refs_of_answers, answers = _schemas({each.gives for *_, each in found} - {None} | {OAuthProblem})
    for schema in answers.values():
        # Every member is always present: defaults are for readers of another version.
        members = schema.get("properties", {})
        schema["required"] = list(members)
        for member in members.values():
            member.pop("default", None)
    refs, schemas = refs | refs_of_answers, schemas | answers
    writer = _Writer(refs, schemas)
    paths: dict[str, Json] = {}
    for path, method, handler, operation in found:
        paths.setdefault(path, {})[method.lower()] = writer.operation(path, handler, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tollgate management API",
            "version": __version__,
            "description": ABOUT,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": base_url}],
        "tags": [{"name": name, "description": description} for name, description in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM_SCHEMA, **dict(sorted(schemas.items()))},
            "headers": _HEADERS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(types: Iterable[Any]) -> tuple[dict[Any, Json], dict[str, Json]]:
    known = sorted(types, key=str)
    refs, schemas = msgspec.json.schema_components(known, ref_template=_REF)
    return dict(zip(known, refs, strict=True)), schemas


def _order(found: tuple[str, str, HTTPRouteHandler, Operation]) -> tuple[int, str, int]:
    path, method, _, operation = found
    return list(TAGS).index(operation.tag), path, _METHODS.index(method)


def _operations(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, str, HTTPRouteHandler, Operation]]:
    for route in routes:
        if not isinstance(route, HTTPRoute) or not route.path.startswith(API_PATHS):
            continue
        for handler in route.route_handlers:
            for method in sorted(handler.http_methods):
                # Litestar answers OPTIONS by itself.
                if method != "OPTIONS":
                    yield route.path_format, method, handler, handler.opt[OPERATION]


class _Writer:
    """Writes operations; knows the schemas of their bodies."""

    def __init__(self, refs: dict[Any, Json], schemas: dict[str, Json]) -> None:
        self._refs = refs
        self._schemas = schemas

    def operation(self, path: str, handler: HTTPRouteHandler, operation: Operation) -> Json:
        secured = "actor" in handler.parsed_fn_signature.parameters
        answers = {str(operation.status): self._success(operation)}
        if operation.also_empty:
            answers["204"] = _answer("Done; the answer has no body.")
        if operation.form:
            answers["400"] = _answer("An error of OAuth.", {JSON: {"schema": self._refs[OAuthProblem]}})
        answers |= _refusals(_problems(path, operation, secured=secured))
        written: Json = {
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.summary,
            "description": operation.description,
            "parameters": [*_path_parameters(path), *_query_parameters(operation), *_header_parameters(operation)],
            "security": [{"bearer": []}] if secured else [],
            "responses": dict(sorted(answers.items())),
        }
        if operation.takes is not None:
            written["requestBody"] = self._body(operation.takes, operation)
        return {name: value for name, value in written.items() if value not in ("", []) or name == "security"}

    def _success(self, operation: Operation) -> Json:
        headers = [*(["ETag"] if operation.tagged else []), *([REPLAYED] if operation.creates else [])]
        if operation.gives is None:
            return _answer("Done.", None, *headers)
        content = {operation.media_type: {"schema": self._refs[operation.gives]}}
        content |= {media_type: {"schema": {"type": "string"}} for media_type in operation.also_text}
        return _answer(HTTPStatus(operation.status).phrase, content, *headers)

    def _body(self, shape: type[Struct], operation: Operation) -> Json:
        ref = self._refs[shape]
        schema = self._schemas[ref["$ref"].rpartition("/")[2]]
        members = schema["properties"].items()
        example = {name: member["examples"][0] for name, member in members if "examples" in member}
        content = {"schema": ref, "example": example}
        return {"required": operation.body_required, "content": {FORM if operation.form else JSON: content}}


def _problems(path: str, operation: Operation, *, secured: bool) -> list[type[Problem]]:
    """The problems of an endpoint: those common to its kind, and those declared."""
    found: list[type[Problem]] = []
    if secured:
        found += [NotLoggedIn, LoginExpired, PersonalTokenRefused, StoreAway]
    if "{team}" in path:
        found.append(NoSuchTeam)
    if "{" in path:
        found.append(NotFound)
    if operation.takes is not None:
        found += (
            [RequestTooLarge, StoreAway] if operation.form else [InvalidInput, RequestTooLarge, WrongMediaType]
        )
    if operation.lists or operation.query:
        found.append(InvalidInput)
    if operation.creates:
        found += [InvalidInput, RequestRunning, KeyReused]
    if operation.conditional:
        found.append(ChangedMeanwhile)
    return list(dict.fromkeys([*found, *operation.raises, TooManyRequests, InternalProblem]))


def _refusals(problems: Iterable[type[Problem]]) -> dict[str, Json]:
    by_status: dict[int, list[type[Problem]]] = {}
    for problem in problems:
        by_status.setdefault(problem.status, []).append(problem)
    content = {PROBLEM: {"schema": {"$ref": _REF.format(name="Problem")}}}
    return {
        str(status): _answer(
            "\n".join(f"- `{problem.reason}`: {problem.when}" for problem in same),
            content,
            *_REFUSAL.get(status, ()),
        )
        for status, same in by_status.items()
    }


_REFUSAL = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}


def _answer(description: str, content: Json | None = None, *headers: str) -> Json:
    named = {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *headers)}
    return {"description": description, "headers": named, **({"content": content} if content else {})}


def _path_parameters(path: str) -> Iterator[Json]:
    for name, description in _PATH_PARAMETERS.items():
        if f"{{{name}}}" in path:
            schema = {"type": "string", "minLength": 1}
            yield {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _query_parameters(operation: Operation) -> Iterator[Json]:
    if operation.lists:
        limit = {"type": "integer", "minimum": 1, "maximum": MAX_ROWS, "default": USUAL_ROWS}
        yield {"name": "limit", "in": "query", "description": "How many at most.", "schema": limit}
        description = "Where to continue: the `next` of the previous page."
        yield {"name": "after", "in": "query", "description": description, "schema": {"type": "string"}}
    yield from operation.query


def _header_parameters(operation: Operation) -> Iterator[Json]:
    if operation.creates:
        schema = {"type": "string", "pattern": "^[!-~]{1,255}$"}
        description = "Makes it safe to send the request again: the same key gets the same answer for 24 hours."
        yield {"name": "Idempotency-Key", "in": "header", "description": description, "schema": schema}
    if operation.conditional:
        schema = {"type": "string", "pattern": "^[ -~]*$"}
        description = "Refuse (412) if it was changed since it had this `ETag`."
        yield {"name": "If-Match", "in": "header", "description": description, "schema": schema}
