"""``make test-brokers``: what works on each MQTT broker that this machine has."""
