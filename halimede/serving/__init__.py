"""Models answered over the network: the Open Inference Protocol (KServe V2) over REST and gRPC, and a router before it.

A server has the models that its wish names (``halimede.models.desired_state``), each in the version that it names, and
takes the step from one version to the next while requests come in. It knows no cluster: who looks after it writes the
wish, and reads in its reports how far it has come.
"""
