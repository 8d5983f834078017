"""Services and DNS of the cluster, in place of kube-proxy and CoreDNS.

It lists Services and EndpointSlices, writes nftables rules into the namespace of each node and of the control plane,
and the names into a file that dnsmasq reads. Only endpoints that are ready get connections.
"""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.network import namespaces
from tests.cluster.processes import ClusterError, end_with_parent, in_namespace, run
from tests.cluster.settings import BROKER_NAME, CLOUD_NAME, DNS_SERVICE, DOMAIN, NODES, RESOLVER
from tests.kubernetes.kubeconfig import Config, read

#: seconds between two requests to the API server
EVERY_S = 0.3
LISTS = ("/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices")
TABLE = "halimede_cluster"
#: of packets that came to a node port
MARK = "0x4000"


@dataclass(frozen=True, order=True, slots=True)
class Rule:
    """One port of a Service, and the addresses behind it."""

    address: str
    port: int
    protocol: str
    endpoints: tuple[tuple[str, int], ...]
    node_port: int = 0


def rules_of(services: Iterable[Mapping[str, Any]], slices: Iterable[Mapping[str, Any]]) -> list[Rule]:
    """Return the rules for all ports of all Services with an address of their own."""
    behind: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    for piece in slices:
        owner = piece["metadata"].get("labels", {}).get("kubernetes.io/service-name", "")
        ready = [
            address
            for endpoint in piece.get("endpoints") or []
            if (endpoint.get("conditions") or {}).get("ready", True)
            for address in endpoint["addresses"]
        ]
        for port in piece.get("ports") or []:
            key = (piece["metadata"]["namespace"], owner, port.get("name") or "")
            behind.setdefault(key, []).extend((address, port["port"]) for address in ready)
    rules = []
    for service in services:
        address = service["spec"].get("clusterIP", "None")
        if address in {"", "None"}:
            continue
        for port in service["spec"].get("ports", []):
            key = (service["metadata"]["namespace"], service["metadata"]["name"], port.get("name") or "")
            ends = tuple(sorted(set(behind.get(key, []))))
            protocol = port.get("protocol", "TCP").lower()
            rules.append(Rule(address, port["port"], protocol, ends, port.get("nodePort", 0)))
    return sorted(rules)


def ruleset(rules: Sequence[Rule]) -> str:
    """Return the rules as a file for ``nft -f``, which replaces the former ones at once."""
    served, unserved, ends = [], [], {}
    for rule in rules:
        names = []
        for address, port in rule.endpoints:
            name = f"e-{address.replace('.', '-')}-{rule.protocol}-{port}"
            ends[name] = f"  chain {name} {{ meta l4proto {rule.protocol} dnat to {address}:{port}; }}"
            names.append(name)
        choices = ", ".join(f"{number} : goto {name}" for number, name in enumerate(names))
        for match in _matches(rule):
            if names:
                served.append(f"    {match} numgen random mod {len(names)} vmap {{ {choices} }}")
            else:
                unserved.append(f"    {match} reject")
    lines = [
        f"table ip {TABLE} {{}}",
        f"delete table ip {TABLE}",
        f"table ip {TABLE} {{",
        *ends.values(),
        "  chain served {", *served, "  }",
        "  chain unserved {", *unserved, "  }",
        "  chain prerouting { type nat hook prerouting priority -100; jump served; }",
        # the answer of an endpoint on another node has to come back through this one
        f"  chain postrouting {{ type nat hook postrouting priority 100; meta mark {MARK} masquerade; }}",
        "  chain output { type nat hook output priority -100; jump served; }",
        "  chain forward { type filter hook forward priority filter; jump unserved; }",
        "  chain sent { type filter hook output priority filter; jump unserved; }",
        "}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _matches(rule: Rule) -> list[str]:
    found = [f"ip daddr {rule.address} {rule.protocol} dport {rule.port}"]
    if rule.node_port:
        found.append(f"fib daddr type local {rule.protocol} dport {rule.node_port} meta mark set {MARK}")
    return found


def hosts_of(services: Iterable[Mapping[str, Any]], slices: Iterable[Mapping[str, Any]]) -> str:
    """Return the names of all Services in the form of /etc/hosts; headless ones have their endpoints' addresses."""
    lines = []
    headless = set()
    for service in services:
        name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.{DOMAIN}"
        address = service["spec"].get("clusterIP", "None")
        if address in {"", "None"}:
            headless.add((service["metadata"]["namespace"], service["metadata"]["name"]))
        else:
            lines.append(f"{address} {name}")
    for piece in slices:
        owner = (piece["metadata"]["namespace"], piece["metadata"].get("labels", {}).get("kubernetes.io/service-name"))
        if owner in headless:
            name = f"{owner[1]}.{owner[0]}.svc.{DOMAIN}"
            lines += [f"{ip} {name}" for end in piece.get("endpoints") or [] for ip in end["addresses"]]
    return "".join(f"{line}\n" for line in sorted(lines))


class ServiceProxy:
    """Keeps rules and names as the API server has them."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config = config
        self._hosts = folder / "hosts"
        self._context = ssl.create_default_context(cadata=config.ca)
        self._resolvers: list[subprocess.Popen[bytes]] = []
        self._applied = ""

    def run(self) -> None:
        """Follow the API server until the process ends."""
        self._hosts.write_text("")
        for namespace in namespaces():
            run("ip", "-netns", namespace, "address", "add", f"{DNS_SERVICE}/32", "dev", "lo")
            command = in_namespace(namespace, *self._resolver())
            self._resolvers.append(subprocess.Popen(command, preexec_fn=end_with_parent))  # noqa: PLW1509 (no threads)
        while True:
            try:
                services, slices = (self._list(path) for path in LISTS)
            except (OSError, ValueError) as error:
                print(f"not listed: {error}", flush=True)
            else:
                self.apply(services, slices)
            time.sleep(EVERY_S)

    def apply(self, services: Sequence[Mapping[str, Any]], slices: Sequence[Mapping[str, Any]]) -> None:
        """Write rules and names, if they differ from those that are there."""
        rules, hosts = ruleset(rules_of(services, slices)), hosts_of(services, slices)
        if hosts != self._hosts.read_text():
            self._hosts.write_text(hosts)
            for resolver in self._resolvers:
                resolver.send_signal(signal.SIGHUP)
        if rules == self._applied:
            return
        try:
            for namespace in namespaces():
                run(*in_namespace(namespace, "nft", "-f", "-"), stdin=rules)
            self._applied = rules
        except ClusterError as error:
            print(f"not applied: {error}\n{rules}", flush=True)

    def _list(self, path: str) -> list[dict[str, Any]]:
        # from the server's cache: cheap, and as new as what a watch would give
        request = urllib.request.Request(f"{self._config.url}{path}?resourceVersion=0")
        request.add_header("Authorization", f"Bearer {self._config.token}")
        with urllib.request.urlopen(request, timeout=5.0, context=self._context) as answer:
            return list(json.load(answer)["items"])

    def _resolver(self) -> list[str]:
        return [
            *RESOLVER,
            "--bind-interfaces",
            f"--listen-address={DNS_SERVICE}",
            f"--addn-hosts={self._hosts}",
            f"--local=/{DOMAIN}/",
            # the site's public names, which are those of a cloud node
            *(f"--host-record={name},{NODES[0].address}" for name in (CLOUD_NAME, BROKER_NAME)),
            "--local-ttl=1",
        ]


def main(kubeconfig: str, folder: str) -> None:
    """Run the proxy with this kubeconfig, and its files in this folder."""
    ServiceProxy(read(Path(kubeconfig)), Path(folder)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
