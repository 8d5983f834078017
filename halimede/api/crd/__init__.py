"""CustomResourceDefinitions, generated from the kinds: so the API server checks nearly all that ``parse`` checks.

``python -m halimede.api.crd`` writes the files. No running service imports this package.
"""

from halimede.api.crd.definition import definition, definitions, structure

__all__ = ["definition", "definitions", "structure"]
