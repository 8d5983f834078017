"""The process around ``halimede.worker``: a node starts it for a service without its own script."""
