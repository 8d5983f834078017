"""Workers as pods: what GM writes for a service, how that differs from what is there, and what its pods say.

All of it is pure: plain Kubernetes objects in, plain objects out. Reading and writing them is the cluster's business.
"""
