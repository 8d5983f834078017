"""Where resources live, behind one port: this GM's own store now, the API server in Kubernetes mode."""
