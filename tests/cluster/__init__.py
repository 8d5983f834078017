"""A cluster with real kubelets on one machine, and an operator's suite for any cluster.

``python -m tests.cluster`` (``make test-cluster``) starts the cluster and runs the suite on it. With ``KUBECONFIG`` it
runs the suite on that cluster.
"""
