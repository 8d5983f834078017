"""Which addresses may be connected to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.errors import InvalidFieldError
from halimede.models import FetchError, FetchReason
from halimede.models.address_policy import METADATA, AddressKind, AddressPolicy, kind_of

NOTHING = AddressPolicy()

#: what lies behind no address that everybody can reach, by the kind that it is
CLOSED = {
    "loopback": "127.0.0.1 127.255.3.4 ::1 ::ffff:127.0.0.1 ::ffff:7f00:1 64:ff9b::7f00:1 2002:7f00:1::",
    "not a public": "::7f00:1 0.0.0.0 0.1.2.3 :: 255.255.255.255 224.0.0.1 ff02::1 240.0.0.1"
    " 192.0.2.1 198.18.0.1 2001:db8::1",
    "private": "10.1.2.3 172.31.255.255 192.168.0.1 100.64.0.1 fd12:3456::1 fec0::1 ::ffff:10.0.0.1",
    "link-local": "169.254.1.1 fe80::1%eth0",
    "metadata": "169.254.169.254 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe 168.63.129.16 100.100.100.200 fd00:ec2::254",
}


@pytest.mark.parametrize(
    ("address", "kind"), [(address, kind) for kind, text in CLOSED.items() for address in text.split()]
)
def test_what_is_not_public_is_refused_and_said(address: str, kind: str) -> None:
    assert kind in NOTHING.refusal("h", address)
    assert "not an address" in NOTHING.refusal("h", "not an address")


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_public_addresses_are_connected_to(address: str) -> None:
    assert NOTHING.refusal("h", address) == ""


@pytest.mark.parametrize(
    ("text", "open_", "closed"),
    [
        ("loopback", ["127.0.0.1", "::1", "::ffff:127.0.0.1"], ["10.0.0.1", "0.0.0.0", "169.254.1.1"]),
        ("private", ["10.0.0.1", "fd00::1", "100.64.0.1"], ["127.0.0.1", "100.100.100.200", "fd00:ec2::254"]),
        ("Loopback, PRIVATE", ["10.0.0.1", "127.0.0.1"], ["169.254.1.1"]),
        ("link-local", ["169.254.1.1", "fe80::1"], ["169.254.169.254", "169.254.170.2"]),
        ("10.1.0.0/16 fd00::/64", ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1"], ["10.2.0.1"]),
        ("169.254.0.0/16", ["169.254.1.1"], ["169.254.169.254"]),
        ("169.254.169.254", ["169.254.169.254"], ["169.254.169.253"]),
        ("192.0.2.1", ["192.0.2.1"], ["192.0.2.2"]),
        ("loopback,private,link-local,0.0.0.0/0", ["127.0.0.1", "0.0.0.0"], ["168.63.129.16"]),
    ],
)
def test_the_operator_opens_exactly_what_he_names(text: str, open_: list[str], closed: list[str]) -> None:
    policy = AddressPolicy.parse(text)
    assert [address for address in open_ if policy.refusal("h", address)] == []
    assert [address for address in closed if not policy.refusal("h", address)] == []


def test_a_named_host_may_be_at_a_private_address_and_at_no_metadata_service() -> None:
    policy = AddressPolicy.parse("models.lan, store")
    for host in ("models.lan", "MODELS.lan.", "store"):
        assert not policy.refusal(host, "10.0.0.1")
        assert not policy.refusal(host, "127.0.0.1")
        assert policy.refusal(host, "169.254.169.254")
        assert policy.refusal(host, "169.254.1.1")
    assert policy.refusal("x.models.lan", "10.0.0.1")


@pytest.mark.parametrize("text", ["all", "metadata", "public", "special"])
def test_there_is_no_word_that_opens_everything(text: str) -> None:
    policy = AddressPolicy.parse(text)  # the name of a host, as any other
    assert all(policy.refusal("h", str(address)) for address in METADATA)
    assert policy.refusal("h", "127.0.0.1")


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "10.0.0.0/33", "http://h", "*", "127.1", "0x7f000001", "a b/c", "-x", "x-"]
)
def test_a_mistake_is_said(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="--fetch-allow"):
        AddressPolicy.parse(text, "--fetch-allow")


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "0x7f000001", "0X7F.1", "0177.0.0.1", "127.0.0.1.", "a.0x1", "1.2.3.4.5"]
)
def test_numbers_that_are_no_whole_address_are_refused(host: str) -> None:
    with pytest.raises(FetchError) as caught:
        AddressPolicy.parse("loopback").check_host(host, "http://...")
    assert caught.value.reason is FetchReason.FORBIDDEN_ADDRESS


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "models.lan", "a.1b", "1.example.com"])
def test_names_and_whole_addresses_are_judged_later(host: str) -> None:
    NOTHING.check_host(host, "http://...")


@given(st.ip_addresses())
def test_every_address_has_a_kind_and_only_public_ones_are_open(address: object) -> None:
    found = ip_address(str(address))
    if not NOTHING.refusal("h", str(found)):
        mapped = getattr(found, "ipv4_mapped", None)
        assert kind_of(mapped or found) is AddressKind.PUBLIC or str(found).startswith("64:ff9b:")
        assert not (found.is_private and not mapped and not str(found).startswith("64:ff9b:"))


@pytest.mark.parametrize("text", ["", "loopback,private", "link-local models.lan,10.0.0.0/8 fd00::/8,169.254.169.254"])
def test_a_policy_is_written_as_it_is_read(text: str) -> None:
    policy = AddressPolicy.parse(text)
    assert AddressPolicy.parse(str(policy)) == policy
