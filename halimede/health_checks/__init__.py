"""The one list of checks of a system: ``halimede status`` and ``doctor``, GM's page and its readiness show its rows.

A new check is a ``CheckRule`` for each result, a function from ``SystemFacts`` to rows, and an entry in
``registry.CHECKS``. Pure: whoever runs the checks collects the facts.
"""
