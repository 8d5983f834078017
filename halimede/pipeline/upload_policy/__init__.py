"""Decides which samples an edge worker or a tier uploads: budget, speed of the connection, audits and drift, each pure.

Workers use ``UploadPolicy``. This package uses no bus, model or event loop: clocks and random sources are arguments, so
that tests can simulate all of it.
"""
