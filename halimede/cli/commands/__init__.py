"""The commands: one room for what ``halimede COMMAND`` does."""
