"""The Kubernetes cluster: resources from informers, statuses by merge-patch, workers as Deployments that GM makes.

The only room that imports ``kubernetes``. Nothing outside it is imported before GM is asked to run in Kubernetes mode,
so a standalone GM does without the package. Its parts, from the wire up: ``api_paths`` (where things
are), ``client`` (calls with deadlines, and their errors), ``informer`` (list, watch, and nothing lost),
``leader_election``, ``custom_resources`` and ``owned_objects``, ``cluster`` (all of it and events, behind the port).
"""
