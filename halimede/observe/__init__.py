"""A process's HTTP endpoint: liveness, readiness, and metrics for Prometheus.

The only socket that a service opens; on loopback unless configured otherwise. It is read-only.
"""

from halimede.observe.http import Accepts, Check, Health, HttpServer, parse_bind

__all__ = ["Accepts", "Check", "Health", "HttpServer", "parse_bind"]
