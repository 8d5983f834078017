"""Three cameras, three nodes, one job: the demo of multi-edge inference (`make demo-multi-edge`)."""
