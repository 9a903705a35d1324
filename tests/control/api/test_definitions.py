"""The definitions of the API fit each other, and every route is served."""

import pkgutil
from importlib import import_module

from msgspec import Struct
from tests.control.api.caller import Api

import tollgate.api
from tollgate.api.base import JSON, Route, kind_of, members

MODULES = [import_module(f"tollgate.api.{each.name}") for each in pkgutil.iter_modules(tollgate.api.__path__)]
TYPES = {
    name: kind
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Struct)
}


# Of a new whitelist entry: what it is an entry of.
CHOSEN_ONCE = {"domain", "take_over"}
COMMANDS = {name for name, kind in TYPES.items() if kind.__struct_config__.forbid_unknown_fields}


def test_every_route_is_served_and_answers_what_it_is_defined_with(api: Api) -> None:
    routes = [each for module in MODULES for each in vars(module).values() if isinstance(each, Route)]
    assert routes
    for route in routes:
        operation = api.document["paths"][f"/api/v1{route.path}"][route.method.lower()]
        shown = {
            media_type: content["schema"].get("$ref", "").rpartition("/")[2]
            for status, answer in operation["responses"].items()
            if status.startswith("2")
            for media_type, content in answer.get("content", {}).items()
        }
        name = route.answer.__name__ if issubclass(route.answer, Struct) else ""
        expected = {media_type: name if media_type == JSON else "" for media_type in route.media_types}
        assert shown == ({} if route.answer is type(None) else expected)


def test_what_can_be_set_can_be_changed() -> None:
    pairs = [
        (kind, TYPES[f"{name[3:]}Change"])
        for name, kind in TYPES.items()
        if name.startswith("New") and f"{name[3:]}Change" in COMMANDS
    ]
    assert pairs
    for new, change in pairs:
        assert set(members(new)) - CHOSEN_ONCE == set(members(change))


def test_every_member_has_a_description_and_every_time_a_format(api: Api) -> None:
    for kind, schema in api.document["components"]["schemas"].items():
        for name, member in schema.get("properties", {}).items():
            if kind != "Problem":
                assert "description" in member or name == "items", f"{kind}.{name}"
            if name.endswith(("_at", "_until")) and name != "looked_at":  # which is how much was compared
                assert kind_of(member) == "date-time", f"{kind}.{name}"
