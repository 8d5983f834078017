"""What all of a script's parts use."""
