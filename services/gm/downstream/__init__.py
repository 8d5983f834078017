"""Messages from GM down to nodes: queued, sent again until acknowledged, watched by node."""
