"""The reference pages are what the code makes, and every page that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import reference_pages

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]


@pytest.mark.parametrize("name", reference_pages.pages())
def test_reference_page_is_current(name: str) -> None:
    page = reference_pages.FOLDER / name
    assert page.read_text(encoding="utf-8") == reference_pages.pages()[name], "run `make reference`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_every_dependency_has_its_reason() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = project.split("dependencies = [", 1)[1].split("\n]", 1)[0]
    names = re.findall(r'"([a-z0-9-]+)(?:\[[a-z]+\])?[=>]', block)
    reasons = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text(encoding="utf-8")
    assert names
    assert [name for name in names if f"**{name}**" not in reasons] == []
