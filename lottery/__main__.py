"""``python -m lottery``."""

from lottery.cli import main

main()
