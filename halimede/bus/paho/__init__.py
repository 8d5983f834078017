"""The adapter of paho-mqtt, the stock MQTT client. ``MqttBus`` uses it."""
