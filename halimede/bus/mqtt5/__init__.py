"""The project's MQTT v5 client: the protocol directly on a socket. ``MqttBus`` uses it.

``encoder.py`` and ``decoder.py`` convert bytes and use no sockets; ``buffers.py`` has received bytes and bytes to send;
``keepalive.py`` detects a dead connection; ``connection.py`` is one connection and ``connect.py`` opens it. The bus
reconnects, subscribes, and acknowledges messages after their handlers. QoS 0 and 1: this project does not use 2, and a
subscription at 1 receives at most at 1 (MQTT v5, 3.8.4).
"""
