"""Workers as pods: a service's objects, their difference to the existing ones, and the status of its pods.

All of it is pure: plain Kubernetes objects in, plain objects out. Reading and writing them is the cluster's business.
"""
