"""Workers that run as pods on this node: their reports are received, counted and stored."""
