"""Readers of files with labelled samples: tables, COCO, Pascal VOC and folders of pictures.

The package ``datasets`` counts samples with them, and evaluation, calibration and training read samples with them, so
that all agree on what a sample is; ``rules`` has the common rules. The readers need neither NumPy nor PIL, because
local controllers import them: they return paths of pictures, which callers open.
"""
