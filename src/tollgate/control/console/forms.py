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
    """What is wrong with each field; empty where it is no single field's fault."""
    typed: Form = {}
    """What was typed, to be shown again."""


def fault_of(problem: Problem, typed: Form | None = None) -> FormFault:
    """What a service refused, for the form that sent it."""
    fields = {error.field: error.detail for error in problem.errors}
    return FormFault(problem.detail, fields, typed or {})


async def read_form(request: HttpRequest) -> Form:
    """The fields of a form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise HTTPException(status_code=415)
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        # Without its cause, which quotes the form, and with it a password.
        raise ClientException from None
    return dict(fields)


def chosen(form: Form, prefix: str) -> list[str]:
    """The values of the boxes of one group that are ticked: their names begin with the group's."""
    return [name.removeprefix(prefix) for name in form if name.startswith(prefix)]


def amount(form: Form, name: str) -> int | None:
    """US dollars as micro-dollars, None where the field is empty, or refuse."""
    text = form.get(name, "").strip().replace(",", "")
    if not text:
        return None
    micros = micros_of(text)
    if micros is None:
        raise InvalidInput("Write an amount such as 25.00, or leave it empty.", field=name)
    return micros


def whole(form: Form, name: str) -> int | None:
    """A whole number, None where the field is empty, or refuse."""
    text = form.get(name, "").replace(",", "").replace(" ", "").strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise InvalidInput("Write a whole number, or leave it empty.", field=name)
    return int(text)


def day(form: Form, name: str) -> datetime | None:
    """A day of UTC, None where the field is empty, or refuse."""
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidInput("Write a day such as 2027-01-31, or leave it empty.", field=name) from None


def command(form: Form, kind: type[Command], *, but: Collection[str] = (), **given: object) -> Command:
    """A command of the API from a form whose fields have the names of its members.

    What is given is not in the form under its name; `but` is left out.
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
    """Which of the boxes are ticked that stand for members of a type."""
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
    """The chosen password, which must be typed twice: the page does not show it."""
    password = form.get(name, "")
    if password != form.get("again", ""):
        raise InvalidInput("The two passwords differ: type the same twice.", field="again")
    return password
