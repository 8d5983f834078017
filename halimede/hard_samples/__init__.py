"""Hard samples that a node stores for inspection and training: a bounded store."""

#: their folder in the folder of a worker
FOLDER = "hard"


def pod_folder(node: str, namespace: str, service: str) -> tuple[str, ...]:
    """Return the steps from the folder of all nodes to that of a service's hard samples, where its worker is a pod."""
    return node, "kept", namespace, service
