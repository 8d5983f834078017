"""Makes HTML reports of a run, each one file that loads nothing: ``page`` is the page, ``charts`` has charts as SVG.

`halimede evaluate` and the demos use it. Pure.
"""
