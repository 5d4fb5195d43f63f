"""Print docs/commands.md, what `--help` says of each command: python -m tests.scripts.command_reference > docs/commands.md"""

from collections.abc import Iterator

import typer

from lottery import cli

WIDTH = 88
HEAD = """# Commands

What `--help` says of each command, and what `python -m tests.scripts.command_reference` prints.
"""


def helps() -> Iterator[tuple[str, str]]:
    """The words of each command, parents first, and its help."""
    waiting = [(typer.main.get_command(cli.app), None, "lottery")]
    while waiting:
        command, parent, name = waiting.pop(0)
        context = type(command).context_class(command, parent=parent, info_name=name, terminal_width=WIDTH)
        yield context.command_path, command.get_help(context)
        for child in command.list_commands(context) if hasattr(command, "list_commands") else ():
            waiting.append((command.get_command(context, child), context, child))


def page() -> str:
    """The whole page."""
    return HEAD + "".join(f"\n## {words}\n\n```text\n{text.strip()}\n```\n" for words, text in helps())


if __name__ == "__main__":
    print(page(), end="")
