"""``make test-homeassistant``: the bridge with a real core of Home Assistant."""
