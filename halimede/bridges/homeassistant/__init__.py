"""The bridge to Home Assistant: its devices and entities are made from the retained messages of a halimede system.

``system_view`` has what the bridge has received, ``devices`` computes from it what Home Assistant should have, and
``publisher`` publishes the difference. The bridge has two connections: to the broker of the system, where it only
reads, and to the broker of Home Assistant, which may be the same one.
"""
