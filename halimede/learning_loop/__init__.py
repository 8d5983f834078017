"""The loop from hard samples to a better model: it collects, trains, judges, tries a canary, and rolls out.

A candidate is a newly trained version of the small model. ``states`` is the state machine, and ``triggers`` starts its
rounds. ``gate`` judges a candidate before any frame reaches it; ``canary`` judges it while it answers a share of the
frames. These modules are pure and use no numpy, so that GM can run them on statuses. ``labels`` and ``sampling`` make
the training set and the held-out set on the nodes that have the samples.
"""
