"""Attack 14: download URLs that lead where nobody outside may look: this machine, its network, its cloud's metadata.

By scheme, by address in any spelling, by a redirect, by a name that changes its address between two look-ups.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halimede.models import AddressPolicy, Cache, FetchError, FetchReason, TransferLimits, fetch
from tests.kubernetes.pki import server_context
from tests.origins import Origin, redirect, serving

ROOT = Path(__file__).parents[2]
LIMITS = TransferLimits(connect_s=10, inactivity_s=10, total_s=30)
#: the one address of this machine that these tests' operator has opened
OPEN, CLOSED = "127.0.0.1", "127.0.0.2"
POLICY = AddressPolicy.parse(OPEN)


@pytest.fixture
def open_() -> Iterator[Origin]:
    with serving(host=OPEN) as origin:
        yield origin


@pytest.fixture
def closed() -> Iterator[Origin]:
    """What must not be reached: it counts whoever connects."""
    with serving(b"a secret of this machine", CLOSED) as origin:
        yield origin


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


async def refused(url: str, cache: Cache, policy: AddressPolicy = POLICY) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await fetch(url, "", cache, limits=LIMITS, policy=policy)
    assert [path for path in cache.root.rglob("sha256/*") if path.is_file()] == []
    assert not caught.value.temporary
    return caught.value


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "[::]", "127.1",
        "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "0", "127.0.0.1.", "%31%32%37.0.0.1", "①②⑦.0.0.1",
        "127。0。0。1", "169.254.169.254", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "169.254.169.254.",
        "0xa9fea9fe", "user:word@169.254.169.254", "10.0.0.1", "192.168.1.1", "[fd00::1]", "[fe80::1]",
    ],
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_attack_14_addresses_in_every_spelling(scheme: str, host: str, closed: Origin, cache: Cache) -> None:
    error = await refused(f"{scheme}://{host}:{closed.port}/m.onnx", cache, AddressPolicy())
    assert error.reason in {FetchReason.FORBIDDEN_ADDRESS, FetchReason.INVALID_URL}
    assert "word" not in str(error)
    assert closed.connections == 0


async def test_attack_14_what_the_operator_opens_is_reached_and_nothing_beside_it(
    open_: Origin, closed: Origin, cache: Cache
) -> None:
    assert (await fetch(f"{open_.url}/m", "", cache, limits=LIMITS, policy=POLICY)).size == len(open_.body)
    error = await refused(f"{closed.url}/m", Cache(cache.root / "other"))
    assert error.reason is FetchReason.FORBIDDEN_ADDRESS
    assert "HALIMEDE_FETCH_ALLOW=loopback" in str(error)
    assert closed.connections == 0


@pytest.mark.parametrize("hops", [1, 3])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_attack_14_every_hop_of_a_redirect_is_judged(
    status: int, hops: int, open_: Origin, closed: Origin, cache: Cache
) -> None:
    for hop in range(1, hops):
        open_.answers[f"/{hop}"] = redirect(f"/{hop + 1}", status)
    open_.answers[f"/{hops}"] = redirect(f"{closed.url}/secret?token=hunter2", status)
    error = await refused(f"{open_.url}/1", cache)
    assert error.reason is FetchReason.FORBIDDEN_ADDRESS
    assert "redirects to" in str(error)
    assert "hunter2" not in str(error)
    assert (len(open_.asked), closed.connections) == (hops, 0)


@pytest.mark.parametrize(
    "to",
    [
        "file:///etc/hostname", "ftp://127.0.0.1/x", "s3://bucket/key", "bus://any/sha256/x", "gopher://127.0.0.1:25/",
        "data:,x", "javascript:1", "http://[::1", "http://h:99999/",
    ],
)  # fmt: skip
async def test_attack_14_a_redirect_to_another_scheme_is_not_followed(to: str, open_: Origin, cache: Cache) -> None:
    open_.answers["/m"] = redirect(to)
    assert (await refused(f"{open_.url}/m", cache)).reason is FetchReason.FORBIDDEN_REDIRECT


async def test_attack_14_credentials_do_not_go_to_another_origin(open_: Origin, cache: Cache) -> None:
    with serving(host=OPEN) as other:
        open_.answers["/m"] = redirect("/n")
        open_.answers["/n"] = redirect(f"http://other:word@{OPEN}:{other.port}/x")
        await fetch(f"http://me:word@{OPEN}:{open_.port}/m", "", cache, limits=LIMITS, policy=POLICY)
        assert ["Authorization" in handler.headers for handler in open_.asked] == [True, True]
        assert ["Authorization" in handler.headers for handler in other.asked] == [False]


class Names:
    """A name server of an attacker: each look-up of his name has the next answer."""

    def __init__(self, patch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0
        patch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        assert host == "evil.example"
        self.asked += 1
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]


async def test_attack_14_a_name_that_changes_between_two_look_ups(
    open_: Origin, closed: Origin, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first address is harmless and sends to the same name again, which has become this machine's by then."""
    names = Names(monkeypatch, [OPEN], [CLOSED])
    open_.answers["/m"] = redirect(f"http://evil.example:{closed.port}/secret")
    error = await refused(f"http://evil.example:{open_.port}/m", cache)
    assert error.reason is FetchReason.FORBIDDEN_ADDRESS
    assert (names.asked, len(open_.asked), closed.connections) == (2, 1, 0)


async def test_attack_14_of_several_addresses_only_allowed_ones_are_used(
    open_: Origin, closed: Origin, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    Names(monkeypatch, [CLOSED, OPEN])
    url = f"http://evil.example:{open_.port}/m"
    assert (await fetch(url, "", cache, limits=LIMITS, policy=POLICY)).size == len(open_.body)
    assert closed.connections == 0


async def test_attack_14_a_proxy_of_the_environment_is_no_way_around(
    closed: Origin, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, closed.url)
    await refused(f"http://{CLOSED}:{closed.port}/m", cache)
    assert closed.connections == 0


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_attack_14_a_store_is_no_way_around(
    scheme: str, closed: Origin, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", f"{scheme}://{CLOSED}:{closed.port}")
    for key in ("", "hunter2"):
        monkeypatch.setenv("ACCESS_KEY_ID", key)
        monkeypatch.setenv("SECRET_ACCESS_KEY", key)
        error = await refused("s3://models/m.onnx", cache)
        assert error.reason is FetchReason.FORBIDDEN_ADDRESS
        assert "hunter2" not in str(error)
    assert closed.connections == 0


@pytest.mark.parametrize(
    "url", ["/proc/self/environ", "file:///proc/self/environ", "/proc/self/root/proc/self/maps", "/sys/power/state"]
)
async def test_attack_14_what_the_kernel_says_of_this_machine_is_no_model(url: str, cache: Cache) -> None:
    assert (await refused(url, cache)).reason in {FetchReason.NOT_A_FILE, FetchReason.NOT_FOUND}


async def test_attack_14_a_link_does_not_lead_there_either(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "model.onnx").symlink_to("/proc/self/environ")
    assert (await refused(str(tmp_path / "model.onnx"), cache)).reason is FetchReason.NOT_A_FILE


async def command(url: str, folder: Path, *options: str, **environment: str) -> tuple[int | None, str]:
    """Run what init containers run; return its exit code and what it says."""
    arguments = ["--url", url, "--cache", str(folder / "c"), "--out", str(folder / "o" / "m"), "--patience", "0"]
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "halimede.models", *arguments, *options],
        cwd=ROOT, env={**os.environ, "HALIMEDE_FETCH_ALLOW": "", **environment}, stderr=subprocess.PIPE,
    )  # fmt: skip
    said = (await process.communicate())[1].decode()
    return process.returncode, said


async def test_attack_14_the_init_container_asks_its_operator_too(closed: Origin, tmp_path: Path) -> None:
    code, said = await command(f"{closed.url}/m", tmp_path)
    assert (code, "ForbiddenAddress" in said, closed.connections) == (2, True, 0)
    code, said = await command(f"{closed.url}/m", tmp_path, "--allow", "loopback")
    assert (code, closed.connections) == (0, 1), said


async def test_attack_14_nobody_is_led_from_https_to_http(open_: Origin, tmp_path: Path) -> None:
    context, authority = server_context(tmp_path)
    (tmp_path / "ca.pem").write_text(authority)
    trusting = {"SSL_CERT_FILE": str(tmp_path / "ca.pem"), "HALIMEDE_FETCH_ALLOW": "loopback"}
    with serving(tls=context) as safe:
        safe.answers["/down"] = redirect(f"{open_.url}/m")
        safe.answers["/along"] = redirect("/m")
        open_.answers["/up"] = redirect(f"{safe.url}/m")
        code, said = await command(f"{safe.url}/down", tmp_path, **trusting)
        assert (code, "ForbiddenRedirect" in said, open_.connections) == (2, True, 0), said
        for url in (f"{safe.url}/along", f"{open_.url}/up"):
            code, said = await command(url, tmp_path, **trusting)
            assert code == 0, said
        code, said = await command(f"{safe.url}/m", tmp_path / "other", "--allow", "loopback")
        assert (code, "certificate" in said) == (2, True), said  # whose authority nobody trusts
