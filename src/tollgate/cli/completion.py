"""`tollgate completion`: the script that lets a shell complete commands, options and team names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tollgate.cli import show
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    import pathlib

    from click import shell_completion
else:
    pathlib, shell_completion = LazyModule("pathlib"), LazyModule("click.shell_completion")  # not for help

_FILES = {
    "bash": ".local/share/bash-completion/completions/tollgate",
    "zsh": ".local/share/zsh/site-functions/_tollgate",
    "fish": ".config/fish/completions/tollgate.fish",
}
INSTALL = "install"


@click.command(epilog="Example: tollgate completion install")
@click.argument("shell", metavar="[bash|zsh|fish|install]", type=click.Choice([*_FILES, INSTALL]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and names, or install it for your shell.

    To have it in every new shell, run `tollgate completion install`, or put it into

    \b
      bash  ~/.local/share/bash-completion/completions/tollgate
      zsh   a folder of your $fpath, as _tollgate
      fish  ~/.config/fish/completions/tollgate.fish
    """
    if shell == INSTALL:
        _install()
        return
    click.echo(_script(shell), nl=False)
    # Not into a pipe: a shell that sources it at each start must not print this each time.
    if show.on_terminal():
        place = "a folder of your $fpath, as _tollgate" if shell == "zsh" else f"~/{_FILES[shell]}"
        show.note(f"\nPut this into {place}, then start a new shell.")


def _install() -> None:
    shell = os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - no path is meant
    if shell not in _FILES:
        raise click.UsageError(
            f"$SHELL is {shell or 'not set'}: print the script with `tollgate completion bash`."
        )
    file = pathlib.Path.home() / _FILES[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_script(shell), encoding="utf-8")
    show.note(f"Wrote {file}. Start a new shell.")
    if shell == "zsh":
        show.note(f"zsh must look there: put  fpath=({file.parent} $fpath)  before compinit in ~/.zshrc.")


def _script(shell: str) -> str:
    made = shell_completion.get_completion_class(shell)
    assert made is not None  # noqa: S101 - Click has all of ours
    return made(click.get_current_context().find_root().command, {}, "tollgate", "_TOLLGATE_COMPLETE").source()
