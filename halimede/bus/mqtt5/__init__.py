"""The project's MQTT v5 client: the protocol directly on a socket. ``MqttBus`` uses it.

``encoder.py`` and ``decoder.py`` convert bytes and use no sockets; ``buffers.py`` has received bytes and bytes to send;
``connection.py`` is one accepted connection and ``connect.py`` makes it. The bus adds the rest (reconnecting,
subscriptions, acknowledging after the handler). QoS 0 and 1: this project does not use 2, and a subscription at 1
receives at most at 1 (MQTT v5, 3.8.4).
"""
