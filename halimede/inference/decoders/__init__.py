"""Reads raw outputs by published schemes: anchors of SSD models, maps of middles and of text, steps of text."""
