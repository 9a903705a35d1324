"""`tollgate completion`: the script that lets a shell complete commands, options and team names."""

from __future__ import annotations

import click

from tollgate.cli import show

_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/tollgate",
    "zsh": "a folder of your $fpath, as _tollgate",
    "fish": "~/.config/fish/completions/tollgate.fish",
}


@click.command(epilog="Example: source <(tollgate completion bash)")
@click.argument("shell", type=click.Choice(list(_PLACES)))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and your teams.

    To have it in every new shell, put it into

    \b
      bash  ~/.local/share/bash-completion/completions/tollgate
      zsh   a folder of your $fpath, as _tollgate
      fish  ~/.config/fish/completions/tollgate.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - not for help

    root = click.get_current_context().find_root().command
    made = get_completion_class(shell)
    if made is None:  # the choice above allows none that Click lacks
        raise click.UsageError(f"There is no completion for {shell}.")
    click.echo(made(root, {}, "tollgate", "_TOLLGATE_COMPLETE").source(), nl=False)
    # Not into a pipe: a shell that sources it at each start must not be greeted each time.
    if show.on_terminal():
        show.note(f"\nPut this into {_PLACES[shell]}, then start a new shell.")
