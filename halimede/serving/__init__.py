"""Model serving: the Open Inference Protocol (KServe V2) over REST and gRPC, and a router before it.

A server has the models of its desired state (``halimede.models.desired_state``), each in the given version, and rolls
out new versions while requests arrive. It does not depend on a cluster: its controller writes the desired state, and
reads the progress in the server's reports.
"""
