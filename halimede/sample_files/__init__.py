"""Readers of files with labelled samples: tables, COCO, Pascal VOC and folders of pictures, by one table of rules.

Datasets are counted with them, and evaluation, calibration and training read with them, so that all agree on what a
sample is. They read bytes only: without numpy and PIL, because local controllers import them. A caller opens the
pictures that they name.
"""
