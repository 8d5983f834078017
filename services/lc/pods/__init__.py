"""Workers that run as pods on this node: heard, counted, remembered."""
