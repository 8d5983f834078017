"""The command lines ``halimede worker`` and ``halimede camera``; ``halimede`` itself has the code that they run."""
