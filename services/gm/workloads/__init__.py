"""Workers as pods on Kubernetes: a service's objects, their difference to the existing ones, and its pods' status.

All of it is pure: plain Kubernetes objects in and out. ``services.gm.cluster.kubernetes`` reads and writes them.
"""
