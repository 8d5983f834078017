"""A process's HTTP endpoint: liveness, readiness, and metrics for Prometheus.

It is the only socket on which a service listens: on loopback unless configured otherwise, and read-only unless a
service adds paths.
"""

from halimede.observe.http import Accepts, Check, Health, HttpServer, parse_bind

__all__ = ["Accepts", "Check", "Health", "HttpServer", "parse_bind"]
