"""The checks of a running system. ``halimede status`` and ``doctor``, GM's page and its readiness show their rows.

A new check is a ``CheckRule`` for each result, a function from ``SystemFacts`` to rows, and an entry in
``registry.CHECKS``. Pure: the program that runs the checks collects the facts.
"""
