"""halimede: edge-cloud collaborative inference on an MQTT v5 bus."""

__version__ = "0.1.0"
