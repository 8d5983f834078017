"""The router: sends a request to the model at the edge, and also to the cloud's if mining finds the answer hard.

Both models are on servers of the Open Inference Protocol, of halimede or any other. Requests arrive over REST, with the
same protocol, or as camera frames over the bus. While the cloud is unavailable, the edge's answer is used and marked as
degraded.
"""
