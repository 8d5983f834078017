"""Workers as pods: a service's objects, their difference to the existing ones, and the status of its pods.

All of it is pure: plain Kubernetes objects in and out. The cluster adapter reads and writes them.
"""
