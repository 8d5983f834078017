"""A lean MQTT v5 client for the sample path: what a bus needs of the protocol, and nothing between it and the socket.

``writing.py`` and ``reading.py`` know bytes and no sockets; ``buffers.py`` holds what has arrived and what
waits to leave; ``link.py`` is one accepted connection and ``connect.py`` makes it. Everything above (reconnecting,
subscriptions, acknowledging after the handler) is the bus's, the same as over the stock client. QoS 0 and 1: nothing of
ours uses 2, and what is subscribed at 1 arrives at 1 at most (MQTT v5, 3.8.4).
"""
