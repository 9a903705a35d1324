from __future__ import annotations

from reference_pages import settings_page
from tollgate.settings.schema import describe


def test_the_page_names_every_setting_with_its_variable_type_and_help() -> None:
    page = settings_page()
    for row in describe():
        (line,) = [line for line in page.splitlines() if line.endswith(f"<br>`{row.variable}` |")]
        assert line.startswith(f"| `{row.key.rpartition('.')[2]}` | {row.kind} |")
        assert row.help
        assert row.help in line


def test_each_table_has_one_heading() -> None:
    headings = [line for line in settings_page().splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings))
    assert "## `[[families.<family>.<network>.upstreams]]`" in headings
