"""``halimede doctor``: checks of this machine, the broker and the system."""
