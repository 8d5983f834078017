"""The applications that come with halimede, one file each."""
