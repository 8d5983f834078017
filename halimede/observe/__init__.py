"""What a process shows of itself over HTTP: whether it lives, whether it is ready, and its figures for Prometheus.

The only socket that a service opens; on loopback unless told otherwise. It reads, and changes nothing.
"""

from halimede.observe.http import Accepts, Check, Health, HttpServer, parse_bind

__all__ = ["Accepts", "Check", "Health", "HttpServer", "parse_bind"]
