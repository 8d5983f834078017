"""Reads raw outputs by published schemes: anchors of SSD models, maps of middles, steps of text."""
