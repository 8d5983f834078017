"""One model to its user: whichever tier answers."""
