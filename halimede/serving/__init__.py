"""Model serving: the Open Inference Protocol (KServe V2) over REST and gRPC, and a router before it.

A server has the models of its desired state, a list of models with their versions, and rolls out new versions while
requests arrive. It does not depend on a cluster: a controller writes the desired state to a file, and reads the
progress in the server's reports.
"""
