"""The router: sends a request to the model at the edge, and to the cloud if mining finds its answer hard.

Both are servers of the Open Inference Protocol, of halimede or any other. Requests arrive over REST, with the same
protocol, or as camera frames over the bus. While the cloud is unavailable, the edge's answer is used and marked as
degraded.
"""
