"""Names in statements: what is not a name is refused, before any database sees it."""

import pytest

from tollgate.store.statements import Sql, slots, statement


def test_names_lists_numbers_and_pieces_of_sql_are_filled_in() -> None:
    query = statement(
        "SELECT {names} FROM {table}_{day} WHERE {where} LIMIT {count}",
        names=("id", "team_id"),
        table="tollgate.blocks",
        day="20261115",
        where=Sql("id = ANY(?::int8[])"),
        count=5,
    )
    assert query == "SELECT id, team_id FROM tollgate.blocks_20261115 WHERE id = ANY(?::int8[]) LIMIT 5"
    assert statement("INSERT INTO t VALUES ({slots})", slots=slots(("a", "b"))) == "INSERT INTO t VALUES (?, ?)"


@pytest.mark.parametrize("name", ["", "a b", "2026-1-1", "0; DROP TABLE days", "a.b.c", 'a"', "a'", "a\n", "é"])
def test_text_that_is_not_a_name_is_refused(name: str) -> None:
    for part in (name, ("id", name)):
        with pytest.raises(ValueError, match="is not a name of a table or column"):
            statement("SELECT {part}", part=part)
