from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tollgate.settings.lines import KeyPath, dotted, locate

KEYS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["a.b", "[x]", "x = 1", "# no comment", '"', "'", "\\", "\n", ""]),
)
SCALARS = st.one_of(
    st.integers(-99, 99).map(str),
    st.sampled_from([
        "true", "1.5e3", "nan", "1979-05-27 07:32:00Z", "07:32:00", "0xff",
        '"plain"', '"[not] # a = table"', r'"\" \\"', "'it is \\'", '""', "''",
        '"""\nkey = 1\n[table]\n"""', "'''\n# 'quoted' \"\n'''", '"""a\\""""""', "''''two''''", '"""""""',
    ]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
TABLES: st.SearchStrategy[Any] = st.recursive(
    st.dictionaries(KEYS, VALUES, max_size=3).map(lambda values: ("table", values, {})),
    lambda inner: st.tuples(
        st.just("table"),
        st.dictionaries(KEYS, VALUES, max_size=2),
        st.dictionaries(KEYS, st.one_of(inner, st.lists(inner, min_size=1, max_size=3)), max_size=3),
    ),
    max_leaves=6,
)
FILLERS = st.lists(st.sampled_from(["", "# comment", "  # [x] y = 1", "\t"]), min_size=1, max_size=4)


class Writer:
    """Writes TOML and remembers on which line it put each key."""

    def __init__(self, fillers: list[str]) -> None:
        self.fillers = fillers
        self.text = ""
        self.lines: dict[KeyPath, int] = {}
        self.turn = 0

    def fill(self) -> None:
        self.turn += 1
        self.text += self.fillers[self.turn % len(self.fillers)] + "\n"

    def mark(self, path: KeyPath) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def key(self, path: KeyPath) -> str:
        separator = (".", " . ")[self.turn % 2]
        return separator.join(written_key(str(part)) for part in path)

    def table(self, table: Any, path: KeyPath, header: KeyPath) -> None:
        _, values, children = table
        for name, value in values.items():
            if name in children:
                continue
            self.fill()
            self.mark((*path, name))
            self.text += self.key((name,)) + " = "
            self.value(value, (*path, name))
            self.text += "\n"
        for name, child in children.items():
            several = child if isinstance(child, list) else [child]
            for index, one in enumerate(several):
                self.fill()
                own: KeyPath = (*path, name)
                self.mark(own)
                if isinstance(child, list):
                    own = (*own, index)
                    self.mark(own)
                written = self.key((*header, name))
                self.text += f"[[{written}]] # header\n" if isinstance(child, list) else f"[ {written} ]\n"
                self.table(one, own, (*header, name))

    def value(self, value: Any, path: KeyPath) -> None:
        if isinstance(value, list):
            self.text += "["
            for index, inner in enumerate(value):
                self.fill()
                self.mark((*path, index))
                self.value(inner, (*path, index))
                self.text += ","
            self.text += " ]"
        elif isinstance(value, dict):
            self.text += "{"
            for position, (name, inner) in enumerate(value.items()):
                self.text += ", " if position else " "
                self.mark((*path, name))
                self.text += self.key((name,)) + " = "
                self.value(inner, (*path, name))
            self.text += " }"
        else:
            self.text += value


def written_key(key: str) -> str:
    if re.fullmatch("[A-Za-z0-9_-]+", key):
        return key
    if "'" not in key and key.isprintable():
        return f"'{key}'"
    if key.isascii() and "\x7f" not in key:
        return json.dumps(key)
    return '"' + "".join(f"\\U{ord(character):08x}" for character in key) + '"'


def paths(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    entries: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    found = {(*path, name) for name, _ in entries}
    return found.union(*(paths(inner, (*path, name)) for name, inner in entries))


@settings(deadline=None)
@given(TABLES, FILLERS, st.sampled_from(["\n", "\r\n"]))
def test_each_key_is_located_on_the_line_it_was_written(table: Any, fillers: list[str], newline: str) -> None:
    writer = Writer(fillers)
    writer.table(table, (), ())
    text = writer.text.replace("\n", newline)

    assert locate(text) == writer.lines
    assert set(writer.lines) == paths(tomllib.loads(text))


def test_dotted_keys_locate_each_level_where_it_first_appears() -> None:
    text = 'a.b."c.d" = 1\na.b.e = 2\n\n[ f . g ]\nh.i = 3\n'
    assert locate(text) == {
        ("a",): 1,
        ("a", "b"): 1,
        ("a", "b", "c.d"): 1,
        ("a", "b", "e"): 2,
        ("f",): 4,
        ("f", "g"): 4,
        ("f", "g", "h"): 5,
        ("f", "g", "h", "i"): 5,
    }


def test_a_table_under_an_array_of_tables_belongs_to_its_last_element() -> None:
    text = "[[a.b]]\n[a.b.c]\nx = 1\n[[a.b]]\n[[a.b.d]]\ny = 1\n[[a.b.d]]\n"
    assert locate(text) == {
        ("a",): 1,
        ("a", "b"): 1,
        ("a", "b", 0): 1,
        ("a", "b", 0, "c"): 2,
        ("a", "b", 0, "c", "x"): 3,
        ("a", "b", 1): 4,
        ("a", "b", 1, "d"): 5,
        ("a", "b", 1, "d", 0): 5,
        ("a", "b", 1, "d", 0, "y"): 6,
        ("a", "b", 1, "d", 1): 7,
    }


def test_whitespace_around_keys_is_optional() -> None:
    assert locate("[a]# b = 1\nc=[1,[2]]\n[[d]]#x\ne={fg=1,h=[3]}\n") == {
        ("a",): 1,
        ("a", "c"): 2,
        ("a", "c", 0): 2,
        ("a", "c", 1): 2,
        ("a", "c", 1, 0): 2,
        ("d",): 3,
        ("d", 0): 3,
        ("d", 0, "e"): 4,
        ("d", 0, "e", "fg"): 4,
        ("d", 0, "e", "h"): 4,
        ("d", 0, "e", "h", 0): 4,
    }


def test_a_table_written_after_its_child_is_located_at_its_own_header() -> None:
    assert locate("[a.b]\n[a]\n")["a",] == 2


def test_an_empty_text_has_no_keys() -> None:
    assert locate("") == locate("\n# nothing\n") == {}


def test_a_path_is_written_as_an_operator_would() -> None:
    assert dotted(("families", "my chain", "mainnet", "upstreams", 0, "url")) == (
        'families."my chain".mainnet.upstreams[0].url'
    )
    assert dotted(("é", "é é")) == '"é"."é é"'
