"""The commands: what each ``halimede COMMAND`` does."""
