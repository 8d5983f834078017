"""Addresses of brokers, as people write them into HALIMEDE_BROKER."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttSettings
from halimede.bus.settings import Endpoint
from halimede.errors import InvalidFieldError


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("broker", "broker", 1883),
        ("127.0.0.1:1884", "127.0.0.1", 1884),
        ("mqtt://broker.site.example", "broker.site.example", 1883),
        ("mqtt://broker:9/", "broker", 9),
        ("[::1]:1883", "::1", 1883),
        ("mqtts://broker", "broker", 8883),
        ("mqtts://broker:443", "broker", 443),
    ],
)
def test_an_address_gives_host_and_port(url: str, host: str, port: int) -> None:
    settings = MqttSettings.from_url(url)
    assert (settings.host, settings.port) == (host, port)
    assert (settings.username, settings.password, settings.prefix) == (None, None, "")


def test_mqtts_checks_the_brokers_certificate_and_mqtt_has_none() -> None:
    secure = MqttSettings.from_url("mqtts://broker").context()
    assert secure is not None
    assert secure.verify_mode is ssl.CERT_REQUIRED
    assert secure.check_hostname
    assert MqttSettings.from_url("mqtt://broker").context() is None


def test_tls_is_of_version_1_2_at_least(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    for credentials in ("", tmp_path):
        context = MqttSettings.from_url("mqtts://broker", credentials=credentials).context()
        assert context is not None
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_credentials_are_unquoted_and_the_password_never_shows() -> None:
    settings = MqttSettings.from_url("mqtt://node-1:s%40cret%2F@broker")
    assert (settings.username, settings.password) == ("node-1", "s@cret/")
    assert "cret" not in repr(settings)
    assert "cret" not in settings.where


def test_a_path_is_the_prefix_of_all_topics() -> None:
    assert MqttSettings.from_url("mqtt://broker/site-1/line.2").prefix == "site-1/line.2/"


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("a,b", [("a", 1883), ("b", 1883)]),
        ("a:1,b:2,c", [("a", 1), ("b", 2), ("c", 1883)]),
        ("mqtts://a,b:9", [("a", 8883), ("b", 9)]),
        ("mqtt://[::1]:7,[::2],c", [("::1", 7), ("::2", 1883), ("c", 1883)]),
    ],
)
def test_an_address_may_have_several_brokers(url: str, endpoints: list[tuple[str, int]]) -> None:
    settings = MqttSettings.from_url(url)
    assert settings.endpoints == tuple(Endpoint(host, port) for host, port in endpoints)
    assert MqttSettings.from_url(settings.url) == settings
    assert [settings.at(endpoint).where for endpoint in settings.endpoints] == settings.where.split(",")


def test_the_brokers_of_a_list_have_user_and_prefix_in_common() -> None:
    settings = MqttSettings.from_url("mqtt://node,1:s,ecret@a:1,b:2/site-1/x")
    assert (settings.username, settings.password, settings.prefix) == ("node,1", "s,ecret", "site-1/x/")
    assert settings.where == "a:1,b:2"
    assert settings.at(Endpoint("b", 2)).password == "s,ecret"


NONSENSE = [
    "a,",
    ",a",
    "a,,b",
    "a:1,b:0",
    "mqtt://a,mqtt://b",
    "a,mqtt://b",
    "a/x,b/x",
    "",
    "://",
    "mqtt://",
    "mqtt://:1883",
    "broker:",
    "broker:port",
    "broker:0",
    "broker:65536",
    "broker:-1",
    "http://broker",
    "mqtt://bro ker",
    "mqtt://broker\n",
    "mqtt://broker?x=1",
    "mqtt://broker#x",
    "mqtt://broker/+/x",
    "mqtt://broker/../x",
    "mqtt://[::1",
    "mqtt://broker..example",
    f"mqtt://{'b' * 64}.example",
    None,
    1883,
]


@pytest.mark.parametrize("url", NONSENSE)
def test_nonsense_is_refused_with_what_to_write_instead(url: str) -> None:
    with pytest.raises(InvalidFieldError, match="HALIMEDE_BROKER"):
        MqttSettings.from_url(url)


@pytest.mark.parametrize("url", ["http://u:secret@broker", "u:secret@broker:x", "mqtt://u:sec/ret@broker", "u:secret@"])
def test_a_refusal_does_not_show_the_password(url: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        MqttSettings.from_url(url)
    assert "ret" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize("login", [f"{'u' * 65_536}:p", f"u:{'é' * 32_768}"], ids=["user", "password"])
def test_a_user_name_or_password_that_mqtt_has_no_room_for_is_refused_and_not_shown(login: str) -> None:
    with pytest.raises(InvalidFieldError, match=r"HALIMEDE_BROKER: .*65535 bytes") as caught:
        MqttSettings.from_url(f"mqtt://{login}@broker")
    assert not set("ué") & set(str(caught.value).split("65535")[0])


def test_a_password_file_that_mqtt_has_no_room_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p" * 65_535)
    assert Credentials(tmp_path).login() == (None, "p" * 65_535)
    (tmp_path / "password").write_text("p" * 65_536)
    with pytest.raises(InvalidFieldError, match=r"password.*at most 65535 bytes"):
        Credentials(tmp_path).login()


@given(st.text(max_size=80))
def test_any_text_gives_settings_or_a_refusal(text: str) -> None:
    try:
        settings = MqttSettings.from_url(text)
    except InvalidFieldError:
        return
    assert settings.host
    assert 0 < settings.port < 65536
    assert not set(settings.prefix) & set("+# \0")


@given(
    host=st.from_regex(r"\A[a-z][a-z0-9-]{0,20}(\.[a-z]{2,5})?\Z"),
    port=st.integers(1, 65_535),
    username=st.text(min_size=1, max_size=20),
    password=st.text(max_size=20),
    prefix=st.lists(st.from_regex(r"\A[a-z0-9]{1,8}\Z"), max_size=3),
)
def test_what_is_written_reads_back(*, host: str, port: int, username: str, password: str, prefix: list[str]) -> None:
    url = f"mqtt://{quote(username, safe='')}:{quote(password, safe='')}@{host}:{port}/{'/'.join(prefix)}"
    settings = MqttSettings.from_url(url)
    assert (settings.host, settings.port) == (host, port)
    assert (settings.username, settings.password) == (username, password)
    assert settings.prefix == "".join(f"{level}/" for level in prefix)


@pytest.mark.parametrize(
    ("variable", "samples", "control"), [(None, "lean", "paho"), ("", "lean", "paho"), ("lean",) * 3, ("paho",) * 3]
)
def test_paho_is_the_client_of_connections_without_samples_unless_the_environment_selects_one(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, samples: str, control: str
) -> None:
    monkeypatch.delenv("HALIMEDE_MQTT_CLIENT", raising=False)
    if variable is not None:
        monkeypatch.setenv("HALIMEDE_MQTT_CLIENT", variable)
    settings = MqttSettings.from_url("broker")
    assert (settings.client, settings.for_control().client) == (samples, control)
