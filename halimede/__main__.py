"""``python -m halimede``: the command ``halimede``, of this interpreter's installation."""

from halimede.cli import main

main()
