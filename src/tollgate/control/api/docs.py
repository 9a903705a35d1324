"""The OpenAPI document as a page for people: one file without scripts that loads nothing.

Reads the document and nothing else, so that the page cannot differ from it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from markupsafe import Markup, escape
from msgspec import Struct

from tollgate.control.api.render import StandalonePage

Json = dict[str, Any]


class FieldDoc(Struct, frozen=True):
    """A member of a body, or a parameter."""

    name: str
    kind: str
    required: bool
    description: str
    place: str = ""


class ResponseDoc(Struct, frozen=True):
    """A possible response."""

    status: str
    lines: list[str]
    shapes: list[str]
    others: list[str]
    """Media types of bodies that have no shape."""
    headers: list[str]


class OperationDoc(Struct, frozen=True):
    """An operation."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    secured: bool
    parameters: list[FieldDoc]
    body: list[FieldDoc]
    media_type: str
    answers: list[ResponseDoc]
    example: str


def page(document: Json) -> bytes:
    reader = _Reader(document)
    return PAGE.render(
        info=document["info"],
        base_url=document["servers"][0]["url"],
        tags=[(tag["name"], tag["description"], reader.entries(tag["name"])) for tag in document["tags"]],
        shapes=reader.shapes(),
    )


class _Reader:
    """Reads from the document what the page shows."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self._schemas: dict[str, Json] = document["components"]["schemas"]
        self._base_url: str = document["servers"][0]["url"]

    def entries(self, tag: str) -> list[OperationDoc]:
        return [
            self._entry(path, method, operation)
            for path, methods in self._document["paths"].items()
            for method, operation in methods.items()
            if tag in operation["tags"]
        ]

    def shapes(self) -> list[tuple[str, str, list[FieldDoc]]]:
        answered = {
            _name(each["schema"])
            for methods in self._document["paths"].values()
            for operation in methods.values()
            for answer in operation["responses"].values()
            for each in answer.get("content", {}).values()
        }
        listed = {_name(items) for name in answered if name for items in self._items(name)}
        return [
            (name, self._schemas[name].get("description", ""), self._members(name))
            for name in sorted(filter(None, answered | listed))
        ]

    def _items(self, name: str) -> list[Json]:
        members = self._schemas[name]["properties"].values()
        return [member["items"] for member in members if "items" in member]

    def _entry(self, path: str, method: str, operation: Json) -> OperationDoc:
        content = operation.get("requestBody", {}).get("content", {})
        media_type: str = next(iter(content), "")
        body: Json = content.get(media_type, {})
        return OperationDoc(
            id=operation["operationId"],
            method=method.upper(),
            path=path,
            summary=operation["summary"],
            description=operation.get("description", ""),
            secured=bool(operation["security"]),
            parameters=[_parameter(each) for each in operation.get("parameters", [])],
            body=self._members(_name(body["schema"])) if body else [],
            media_type=media_type,
            answers=[_answer(status, answer) for status, answer in operation["responses"].items()],
            example=self._example(path, method, operation, media_type, body),
        )

    def _members(self, name: str) -> list[FieldDoc]:
        schema = self._schemas[name]
        return [
            FieldDoc(member, _kind(each), member in schema.get("required", []), each.get("description", ""))
            for member, each in schema["properties"].items()
        ]

    def _example(self, path: str, method: str, operation: Json, media_type: str, body: Json) -> str:
        query = "&".join(
            f"{each['name']}={each['schema']['examples'][0]}"
            for each in operation.get("parameters", [])
            if each["in"] == "query" and each.get("required")
        )
        parts = ["curl"] if method == "get" else ["curl", f"-X {method.upper()}"]
        if operation["security"]:
            parts.append('-H "Authorization: Bearer $TOLLGATE_TOKEN"')
        if media_type.endswith("urlencoded"):
            parts += [f"--data-urlencode '{name}={value}'" for name, value in body["example"].items()]
        elif body:
            parts += [f"-H 'Content-Type: {media_type}'", f"-d '{msgspec.json.encode(body['example']).decode()}'"]
        parts.append(f"'{self._base_url}{path}{'?' + query if query else ''}'")
        return " \\\n  ".join(parts)


def _prose(text: str) -> Markup:
    """Render the subset of Markdown that descriptions use."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", html))  # noqa: S704 - escaped above


def _name(schema: Json) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _parameter(each: Json) -> FieldDoc:
    required = each.get("required", False)
    return FieldDoc(each["name"], _kind(each["schema"]), required, each["description"], each["in"])


def _answer(status: str, answer: Json) -> ResponseDoc:
    names = {media_type: _name(each["schema"]) for media_type, each in answer.get("content", {}).items()}
    return ResponseDoc(
        status,
        lines=[line.removeprefix("- ") for line in answer["description"].splitlines()],
        shapes=[name for name in names.values() if name],
        others=[media_type for media_type, name in names.items() if not name],
        headers=[name for name in answer["headers"] if name != "X-Request-Id"],
    )


def _kind(schema: Json) -> str:
    """A type in words, with its bounds."""
    if "anyOf" in schema:
        kinds = [_kind(each) for each in schema["anyOf"]]
        return " or ".join(kinds) + _bounds(schema)
    if "enum" in schema:
        return ", ".join(str(each) for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" + _bounds(schema)
    if "$ref" in schema:
        return _name(schema)
    return str(schema.get("format") or schema.get("type", "anything")) + _bounds(schema)


def _bounds(schema: Json) -> str:
    parts = []
    for lower, upper, what in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
    ):
        if upper in schema:
            parts.append(f"{schema.get(lower, 0)} to {schema[upper]}{what}")
    if "default" in schema:
        parts.append(f"usually {msgspec.json.encode(schema['default']).decode()}")
    return f" ({', '.join(parts)})" if parts else ""


PAGE = StandalonePage("docs", prose=_prose)
