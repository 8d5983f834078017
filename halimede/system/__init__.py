"""What the operating system gives: files, processes, memory. Nothing here knows halimede."""
