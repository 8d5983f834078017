"""Federated training: models are trained where the samples are, and only changes of weights leave a node.

An aggregator (``aggregator.py``) and trainers (``trainer_worker.py``) are workers. What a user writes is a class with
``train`` and ``evaluate`` (``trainer.py``). ``aggregation/`` has one file for each algorithm.
"""
