"""Workers that run as pods on this node: the LC receives, adds up and stores their reports."""
