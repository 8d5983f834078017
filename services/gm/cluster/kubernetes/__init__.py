"""The ``Cluster`` on Kubernetes: resources from informers, statuses by merge-patch, workers as Deployments of GM.

Only this package imports ``kubernetes``, and nothing outside imports this package before GM runs in Kubernetes mode:
a standalone GM does not need the dependency. Its modules, from the lowest layer: ``api_paths`` (paths of objects),
``client`` (calls with deadlines, and their errors), ``conversion`` (objects to the parts that GM keeps), ``informer``
(list and watch), ``leader_election``, ``pod_warnings``, ``custom_resources`` and ``owned_objects``, ``cluster``
(implements the port, and writes events).
"""
