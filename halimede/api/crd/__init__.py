"""CustomResourceDefinitions, made from the kinds: what the API server checks is never anything else than what we read.

``python -m halimede.api.crd`` writes the files. No running service imports this package.
"""

from halimede.api.crd.definition import definition, definitions, structure

__all__ = ["definition", "definitions", "structure"]
