"""The pod that serves customer traffic: it asks the model at the edge, and the one in the cloud where mining says so.

Both are servers of the Open Inference Protocol, ours or anybody's. Requests come over REST, as the same protocol, or
as frames of cameras over the bus. While the cloud is away the edge's answer stands, marked degraded.
"""
