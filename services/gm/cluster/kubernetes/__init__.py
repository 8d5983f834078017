"""The Kubernetes cluster: resources from informers, statuses by merge-patch, workers as Deployments that GM makes.

The only room that imports ``kubernetes``. Nothing outside it is imported before GM is asked to run in Kubernetes mode,
so a standalone GM does without the package. Its parts, from the wire up: ``names`` (where things are), ``errors``,
``config``, ``client`` (calls with deadlines), ``informer`` (list, watch, and nothing lost), ``elector`` (who leads),
``resources``, ``workers``, ``secrets`` and ``events`` (one concern each), ``cluster`` (all of it behind the port).
"""
