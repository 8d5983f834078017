"""Hard samples that an edge worker stores on its node for inspection and training, and how clients get them.

Easy samples that were audited (answered by the next tier as well, to measure accuracy) are stored as well.
"""

#: the name of the samples' folder in the folder of a worker
FOLDER = "hard"


def pod_folder(node: str, namespace: str, service: str) -> tuple[str, ...]:
    """Return the folder of a service's hard samples if its worker is a pod: its parts below the folder of all nodes."""
    return node, "kept", namespace, service
