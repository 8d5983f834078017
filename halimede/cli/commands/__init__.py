"""The commands: the implementation of each ``halimede COMMAND``."""
