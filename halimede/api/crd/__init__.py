"""CustomResourceDefinitions, made from the kinds: what the API server checks is never anything else than what we read.

``structure`` walks the types, ``definition`` puts a kind's manifest around them, ``python -m halimede.api.crd`` writes
the files. Nothing in a running service imports this room.
"""

from halimede.api.crd.definition import definition, definitions
from halimede.api.crd.structure import structure

__all__ = ["definition", "definitions", "structure"]
