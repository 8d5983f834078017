"""The process around ``halimede.worker``: what a node starts for a service that brings no script of its own."""
