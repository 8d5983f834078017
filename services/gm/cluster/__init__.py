"""The cluster behind one port: GM's own store in standalone mode, the API server in Kubernetes mode."""
