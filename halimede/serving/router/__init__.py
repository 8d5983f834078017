"""The router: sends a request to the model at the edge, and to the cloud if mining finds its answer hard.

Both are servers of the Open Inference Protocol, ours or anybody's. Requests come over REST, as the same protocol, or
as frames of cameras over the bus. While the cloud is away the edge's answer stands, marked degraded.
"""
