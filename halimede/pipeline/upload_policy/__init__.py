"""Decides which samples an edge worker or a tier uploads: budget, uplink, audits and drift, each pure.

Nothing in this room knows bus, model or loop: clocks and random sources are arguments, so that everything in it can
be simulated. ``UploadPolicy`` is what workers use.
"""
