"""Which samples an edge worker, or a tier, sends on: budget, uplink, audits and drift, each pure, put together here.

Nothing in this room knows bus, model or loop: clocks and random sources are arguments, so that everything in it can
be simulated. ``UploadPolicy`` is what workers use.
"""
