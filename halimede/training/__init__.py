"""Federated training: models are trained where the samples are, and only changes of weights leave a node.

An aggregator (``aggregator``) and trainers (``trainer_worker``) are workers. A user writes a class with the methods of
``trainer.Trainer``. ``aggregation`` has a module for each algorithm that makes new weights of the trainers' updates.
"""
