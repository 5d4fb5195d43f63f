"""The command line: thin commands, each of which imports the modules that it calls; `entry` starts them."""

from lottery.cli.entry import app, main

__all__ = ["app", "main"]
