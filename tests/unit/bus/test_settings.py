"""Addresses of brokers, as people write them into HALIMEDE_BROKER."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from halimede.access.certificate_authority import new_authority, new_client
from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttBus
from halimede.bus.settings import Endpoint, MqttSettings
from halimede.bus.transport import end_of_certificate
from halimede.errors import DisconnectedError, InvalidFieldError
from halimede.observe.metrics import buses


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("broker", "broker", 1883),
        ("127.0.0.1:1884", "127.0.0.1", 1884),
        ("mqtt://broker.site.example", "broker.site.example", 1883),
        ("mqtt://broker:9/", "broker", 9),
        ("[::1]:1883", "::1", 1883),
        (f"{'b' * 63}.example:65535", f"{'b' * 63}.example", 65_535),
        ("mqtts://broker", "broker", 8883),
        ("mqtts://broker:443", "broker", 443),
    ],
)
def test_an_address_gives_host_and_port(url: str, host: str, port: int) -> None:
    settings = MqttSettings.from_url(url)
    assert (settings.host, settings.port) == (host, port)
    assert (settings.username, settings.password, settings.prefix) == (None, None, "")


def test_mqtts_checks_the_brokers_certificate_with_tls_1_2_at_least_and_mqtt_has_none(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    for credentials in ("", tmp_path):
        context = MqttSettings.from_url("mqtts://broker", credentials=credentials).context()
        assert context is not None
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert MqttSettings.from_url("mqtt://broker").context() is None


def test_credentials_are_unquoted_and_the_password_never_shows() -> None:
    settings = MqttSettings.from_url("mqtt://node-1:s%40cret%2F@broker")
    assert (settings.username, settings.password) == ("node-1", "s@cret/")
    assert "cret" not in repr(settings)
    assert "cret" not in settings.where


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("a,b", [("a", 1883), ("b", 1883)]),
        ("a:1,b:2,c", [("a", 1), ("b", 2), ("c", 1883)]),
        ("mqtts://a,b:9", [("a", 8883), ("b", 9)]),
        ("mqtts://a,b:9/site-1/x", [("a", 8883), ("b", 9)]),
        ("mqtt://[::1]:7,[::2],c", [("::1", 7), ("::2", 1883), ("c", 1883)]),
    ],
)
def test_an_address_may_have_several_brokers(url: str, endpoints: list[tuple[str, int]]) -> None:
    settings = MqttSettings.from_url(url)
    assert settings.endpoints == tuple(Endpoint(host, port) for host, port in endpoints)
    assert MqttSettings.from_url(settings.url) == settings
    assert [settings.at(endpoint).where for endpoint in settings.endpoints] == settings.where.split(",")


def test_the_brokers_of_a_list_have_user_and_prefix_in_common() -> None:
    settings = MqttSettings.from_url("mqtt://node,1:s,ecret@a:1,b:2/site-1/line.2")
    assert (settings.username, settings.password, settings.prefix) == ("node,1", "s,ecret", "site-1/line.2/")
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


@pytest.mark.parametrize(
    ("files", "secure", "problem"),
    [
        (None, False, "there is no such folder"),
        ({}, False, "it holds no credentials"),
        ({"username": b"me"}, False, "it holds no credentials"),
        ({"password": b"s"}, False, ""),
        ({"password": b"s", "username": b"me"}, True, ""),
        ({"password": b"\xff"}, False, "password' is not accepted: make it a readable text"),
        ({"tls.crt": b""}, True, "tls.crt and tls.key go together"),
        ({"tls.key": b""}, True, "tls.crt and tls.key go together"),
        ({"ca.crt": b""}, False, "it is for TLS"),
        ({"tls.crt": b"", "tls.key": b""}, False, "it is for TLS"),
        ({"ca.crt": b"x"}, True, r"its files do not fit \([A-Z_]+\)"),
        ({"tls.crt": b"x", "tls.key": b"x"}, True, r"its files do not fit \([^N]"),
    ],
)
def test_a_folder_of_credentials_is_checked_before_it_is_used(
    tmp_path: Path, files: dict[str, bytes] | None, secure: bool, problem: str
) -> None:
    folder = tmp_path / "user"
    if files is not None:
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
    url = "mqtts://broker" if secure else "broker"
    if problem:
        with pytest.raises(InvalidFieldError, match=rf"HALIMEDE_CREDENTIALS: .*{problem}"):
            MqttSettings.from_url(url, credentials=folder)
        return
    settings = MqttSettings.from_url(url, credentials=folder)
    context, login = settings.tls_and_login()
    assert (context is not None) == secure
    assert login == ("me" if files and "username" in files else None, "s")
    (folder / "password").write_bytes(b"\xff")
    with pytest.raises(DisconnectedError, match="readable text"):
        settings.tls_and_login()


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


def test_an_unknown_client_is_refused_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_MQTT_CLIENT", "fast")
    with pytest.raises(InvalidFieldError, match=r"HALIMEDE_MQTT_CLIENT.*fast.*lean, paho"):
        MqttSettings.from_url("broker")


@pytest.mark.parametrize("days", [1, 365, 365 * 30])
def test_the_end_of_a_clients_certificate_is_known(tmp_path: Path, days: int) -> None:
    # from 2050 on, certificates write times in another form
    pair = new_client(new_authority(days), "lc.edge0", days)
    (tmp_path / "tls.crt").write_bytes(b"subject: lc.edge0\n" + pair.certificate.public_bytes(Encoding.PEM))
    end = pair.certificate.not_valid_after_utc.timestamp()
    settings = MqttSettings("broker", 8883, secure=True, credentials=Credentials(tmp_path))
    assert settings.certificate_end(None) == end
    assert settings.certificate_end(end_of_certificate({"notAfter": "Jan  5 09:34:43 2018 GMT"})) == 1515144883
    (tmp_path / "tls.crt").write_text("nonsense")
    assert settings.certificate_end(None) is None


def test_the_metric_has_the_end_of_a_new_certificate_before_the_next_connection(tmp_path: Path) -> None:
    authority = new_authority(365)
    bus = MqttBus("lc.edge0", MqttSettings("broker", 8883, secure=True, credentials=Credentials(tmp_path)))
    for days in (1, 365):
        certificate = new_client(authority, "lc.edge0", days).certificate
        (tmp_path / "tls.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
        samples = [sample for metric in buses([bus]) for sample in metric.samples if "certificate" in sample.name]
        assert [sample.value for sample in samples] == [certificate.not_valid_after_utc.timestamp()]
