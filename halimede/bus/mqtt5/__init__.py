"""Our own MQTT v5 client: the protocol directly on a socket.

``encoder.py`` and ``decoder.py`` know bytes and no sockets; ``buffers.py`` holds what has arrived and what waits to
leave; ``connection.py`` is one accepted connection and ``connect.py`` makes it. What is above (reconnecting,
subscriptions, acknowledging after the handler) is the bus's. QoS 0 and 1: nothing here uses 2, and what is subscribed
at 1 arrives at 1 at most (MQTT v5, 3.8.4).
"""
