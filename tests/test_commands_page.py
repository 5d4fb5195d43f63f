"""docs/commands.md is what the commands say of themselves."""

import re
from pathlib import Path

from tests.scripts import command_reference

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"


def test_the_page_is_the_help_of_every_command():
    written = PAGE.read_text().split("\n## ")
    made = command_reference.page().split("\n## ")
    for one, other in zip(written, made, strict=True):
        assert one == other


def test_what_a_person_sees_is_what_the_page_says(lottery_command):
    """The page is made by the parser's own function; here the real command prints it, line breaks aside."""
    for words, text in command_reference.helps():
        done = lottery_command(*words.split()[1:], "--help")
        printed = re.sub(
            r"Usage: .*?lottery\b", "Usage: lottery", done.stdout, count=1
        )  # pytest's name stands before it
        assert done.returncode == 0 and printed.split() == text.split(), words
