"""The loop from hard samples to a better model: it collects, trains, judges, tries a canary, and rolls out.

``states`` is the state machine. ``gate`` judges a candidate before any frame reaches it, and ``canary`` judges it while
it answers a share of the frames. ``triggers`` starts rounds. These modules are pure and use no numpy, so that GM can
run them on statuses. ``labels`` and ``sampling`` make the training set and the held-out set where the samples are.
"""
