"""The OpenAPI document as a page for people: one file without scripts that loads nothing.

Reads the document and nothing else, so that the page cannot differ from it.
"""

from __future__ import annotations

import re

import msgspec
from markupsafe import Markup, escape

from tollgate.api.base import Json
from tollgate.control.api.render import StandalonePage


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

    def entries(self, tag: str) -> list[Json]:
        return [
            self._entry(path, method, operation)
            for path, methods in self._document["paths"].items()
            for method, operation in methods.items()
            if tag in operation["tags"]
        ]

    def shapes(self) -> list[tuple[str, str, list[Json]]]:
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

    def _entry(self, path: str, method: str, operation: Json) -> Json:
        content = operation.get("requestBody", {}).get("content", {})
        media_type: str = next(iter(content), "")
        body: Json = content.get(media_type, {})
        return {
            **operation,
            "method": method.upper(),
            "path": path,
            "parameters": [
                _member(
                    each["name"],
                    {**each["schema"], "description": each["description"]},
                    each["in"],
                    required=each.get("required", False),
                )
                for each in operation.get("parameters", [])
            ],
            "body": self._members(_name(body["schema"])) if body else [],
            "media_type": media_type,
            "answers": [_answer(status, answer) for status, answer in operation["responses"].items()],
            "example": self._example(path, method, operation, media_type, body),
        }

    def _members(self, name: str) -> list[Json]:
        schema = self._schemas[name]
        required = schema.get("required", [])
        return [_member(name, each, required=name in required) for name, each in schema["properties"].items()]

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


def _member(name: str, schema: Json, place: str = "", *, required: bool) -> Json:
    """A member of a body, or a parameter."""
    description = schema.get("description", "")
    return {"name": name, "kind": _kind(schema), "place": place, "required": required, "description": description}


def _answer(status: str, answer: Json) -> Json:
    names = {media_type: _name(each["schema"]) for media_type, each in answer.get("content", {}).items()}
    return {
        "status": status,
        "lines": [line.removeprefix("- ") for line in answer["description"].splitlines()],
        "shapes": [name for name in names.values() if name],
        # Media types of bodies that have no shape.
        "others": [media_type for media_type, name in names.items() if not name],
        "headers": [name for name in answer["headers"] if name != "X-Request-Id"],
    }


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
