"""Decides which samples an edge worker or a tier uploads: budget, uplink, audits and drift, each pure.

This package uses no bus, model or event loop: clocks and random sources are arguments, so that tests can simulate all
of it. Workers use ``UploadPolicy``.
"""
