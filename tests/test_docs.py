"""Pages of docs/: each names the tests that follow it or why none does, and every command on it exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tollgate.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
EVERYWHERE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
LAST_LINES = ("*Followed by", "*Checked by", "*Written by", "*Not followed by a test", "*Each row names its tests")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_the_tests_that_follow_it_or_shows_why_none_does(page: Path) -> None:
    text = page.read_text()
    assert any(line.startswith(LAST_LINES) for line in text.splitlines())
    for name in re.findall(r"`(tests/[A-Za-z0-9_/.]+\.py)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", EVERYWHERE, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target


def commands(page: Path) -> list[str]:
    """The commands of the tool in a page's blocks and words, without comments and what is piped elsewhere."""
    text = page.read_text()
    found = re.findall(r"^(?:\.venv/bin/)?(tollgate [a-z].*)$", "\n".join(blocks(text)), re.MULTILINE)
    found += re.findall(r"`(tollgate [a-z][^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [re.split(r"\s+#|[|><;…]|&&", each)[0].strip() for each in found]


def blocks(text: str) -> list[str]:
    return [re.sub(r"\\\n\s*", "", block) for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize("page", EVERYWHERE, ids=lambda page: page.stem)
def test_every_command_on_a_page_exists_with_its_options(page: Path) -> None:
    for line in commands(page):
        words = shlex.split(line)[1:]
        command: click.Command = cli
        ctx = click.Context(cli, info_name="tollgate")
        while words and isinstance(command, click.Group) and not words[0].startswith("-"):
            below = command.get_command(ctx, words[0])
            assert below is not None, f"{line}: there is no {words[0]}"
            command, words = below, words[1:]
            ctx = click.Context(command, parent=ctx, info_name=command.name)
        options = {name for param in command.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in {*options, "--help"}, f"{line}: there is no {word}"
