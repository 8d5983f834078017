"""Programs that connect a halimede system with another system over MQTT: ``halimede bridge NAME``."""
