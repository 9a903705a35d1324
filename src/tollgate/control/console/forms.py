"""Reads forms; errors are shown beside their fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import parse_qsl

from litestar.exceptions import ClientException, HTTPException
from msgspec import Struct

from tollgate.api.base import is_nullable, kind_of, members
from tollgate.control.commands import from_form
from tollgate.control.console.paths import HttpRequest
from tollgate.control.problems import FieldError, InvalidInput, Problem
from tollgate.core.pricing import micros_of

MAX_BYTES = 16_384
MAX_FIELDS = 100
_TYPE = "application/x-www-form-urlencoded"

Form = Mapping[str, str]
Command = TypeVar("Command", bound=Struct)


class FormFault(Struct, frozen=True):
    """Why a form was refused."""

    text: str
    fields: Mapping[str, str] = {}
    """The error of each field; empty if the problem concerns no single field."""
    typed: Form = {}
    """The form's input, to be shown again."""


def fault_of(problem: Problem, typed: Form | None = None) -> FormFault:
    """A service's refusal, for the form that was sent."""
    fields = {error.field: error.detail for error in problem.errors}
    return FormFault(problem.detail, fields, typed or {})


async def read_form(request: HttpRequest) -> Form:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise HTTPException(status_code=415)
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        # Without its cause, which quotes the form, passwords included.
        raise ClientException from None
    return dict(fields)


def chosen(form: Form, prefix: str) -> list[str]:
    """The values of a group's ticked boxes, whose names start with `prefix`."""
    return [name.removeprefix(prefix) for name in form if name.startswith(prefix)]


def amount(form: Form, name: str) -> int | None:
    """US dollars as micro-dollars; None if the field is empty."""
    text = form.get(name, "").strip().replace(",", "")
    if not text:
        return None
    micros = micros_of(text)
    if micros is None:
        raise InvalidInput("Write an amount such as 25.00, or leave it empty.", field=name)
    return micros


def whole(form: Form, name: str) -> int | None:
    """A whole number; None if the field is empty."""
    text = form.get(name, "").replace(",", "").replace(" ", "").strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise InvalidInput("Write a whole number, or leave it empty.", field=name)
    return int(text)


def day(form: Form, name: str) -> datetime | None:
    """A day in UTC; None if the field is empty."""
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidInput("Write a day such as 2027-01-31, or leave it empty.", field=name) from None


def command(form: Form, kind: type[Command], *, but: Collection[str] = (), **given: object) -> Command:
    """A command of the API from a form whose fields have the names of its members.

    `given` members are not read from the form; `but` are omitted.
    """
    unreadable: list[FieldError] = []
    for name, schema in members(kind).items():
        if name not in given and name not in but:
            try:
                value = _READERS[kind_of(schema)](form, name)
                given[name] = None if value == "" and is_nullable(schema) else value
            except InvalidInput as refusal:
                unreadable += refusal.errors
    return from_form(given, kind, unreadable)


def ticked(form: Form, kind: type[Struct], *, but: Collection[str] = ()) -> dict[str, bool]:
    """The boolean members of a type, by their boxes in the form."""
    switches = [name for name, schema in members(kind).items() if kind_of(schema) == "boolean"]
    return {name: name in form for name in switches if name not in but}


_READERS: dict[str, Callable[[Form, str], object]] = {
    "boolean": lambda form, name: name in form,
    "integer": whole,
    "date-time": day,
    "array": lambda form, name: tuple(form.get(name, "").replace(",", " ").split()),
    "string": lambda form, name: form.get(name, "").strip(),
}


def new_password(form: Form, name: str = "password") -> str:
    """The new password, which must be entered twice because it is not shown."""
    password = form.get(name, "")
    if password != form.get("again", ""):
        raise InvalidInput("The two passwords differ: enter the same one twice.", field="again")
    return password
