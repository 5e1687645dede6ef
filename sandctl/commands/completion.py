"""`sandctl completion`: print the scripts by which shells complete commands, options, topics and groups."""

from __future__ import annotations

import click

from sandctl.options.common import common_options

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_SANDCTL_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@common_options
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes a shell complete sandctl's words.

    \b
    In ~/.bashrc:                    eval "$(sandctl completion bash)"
    In ~/.zshrc, behind compinit:    eval "$(sandctl completion zsh)"
    In ~/.config/fish/config.fish:   sandctl completion fish | source

    Names of topics and groups come from the servers of SANDCTL_SERVERS or --server.
    """
    from click.shell_completion import ShellComplete, get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    # Not found.source(): for bash it would run bash to find its version.
    click.echo(ShellComplete.source(found(context.find_root().command, {}, "sandctl", VARIABLE)))
