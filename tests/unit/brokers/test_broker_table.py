"""`make test-brokers`: which brokers it finds, what its files contain, and its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.access.site import Site
from halimede.errors import HalimedeError
from services.site import Security
from tests.brokers.installation import KINDS, Installation, configuration_of, installations, make_site, site_of
from tests.brokers.probes import RETAINED, Limits
from tests.brokers.report import BrokerReport, SuiteCount, tables

EMQX = Installation("emqx", "5.8.6", ("start",), "compiled")
RUN = {
    "scenario": "broker killed", "sent": 100, "answered": 97, "lost_named": 3, "lost_unnamed": 0, "repeated": 1,
    "cloud_s": 4.5, "well_s": 31.0,
}  # fmt: skip


def broker_folder(folder: Path, *names: str) -> Path:
    for name in names:
        start = folder / name / "start"
        start.parent.mkdir(parents=True)
        start.touch(0o755)
    return folder


def made_site(home: Path, security: Security = Security.PASSWORDS) -> tuple[Site, Path]:
    site = site_of(20_001, security)
    make_site(site, home / "site")
    return site, home / "site"


def assert_on_loopback(text: str) -> None:
    assert "0.0.0.0" not in text
    assert "127.0.0.1" in text
    assert "20001" in text


def test_mosquitto_of_this_machine_comes_first_then_those_of_the_folder(tmp_path: Path) -> None:
    folder = broker_folder(tmp_path, "emqx-5.8.6", "mosquitto-2.1.2")
    (folder / "emqx-5.8.6" / "origin").write_text("its image\n")
    here, emqx, mosquitto = installations(folder)
    assert here.name.startswith("mosquitto 2.")
    assert (emqx.name, emqx.origin) == ("emqx 5.8.6", "its image")
    assert mosquitto.command == (str(folder / "mosquitto-2.1.2" / "start"),)


@pytest.mark.parametrize(("name", "cause"), [("hivemq-4", "'hivemq' is not one of"), ("nothing", "no folder")])
def test_a_folder_without_a_broker_that_is_known_is_refused(tmp_path: Path, name: str, cause: str) -> None:
    with pytest.raises(HalimedeError, match=cause):
        installations(broker_folder(tmp_path, name))


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_without_users_is_on_loopback_alone(tmp_path: Path, kind: str) -> None:
    assert_on_loopback(KINDS[kind].open(tmp_path, 20_001))


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.security])
@pytest.mark.parametrize("security", [Security.PASSWORDS, Security.TLS])
def test_a_site_is_served_on_loopback_alone(tmp_path: Path, kind: str, security: Security) -> None:
    site, folder = made_site(tmp_path, security)
    text = configuration_of(Installation(kind, "", (), ""), site, folder, tmp_path)
    assert_on_loopback("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    assert str(folder) in text


@pytest.mark.parametrize("member", [1, 2])
def test_two_brokers_of_emqx_are_nodes_of_one_cluster(tmp_path: Path, member: int) -> None:
    site, folder = made_site(tmp_path)
    alone, node = (configuration_of(EMQX, site, folder, tmp_path, number) for number in (0, member))
    assert "cluster" not in [line.split()[0] for line in alone.splitlines()]
    name, cluster = node.removeprefix(alone).splitlines()  # later settings take precedence
    assert name == f'node.name = "halimede{member}@127.0.0.1"'
    assert 'seeds = ["halimede1@127.0.0.1", "halimede2@127.0.0.1"]' in cluster


def test_two_brokers_of_mosquitto_have_the_same_configuration(tmp_path: Path) -> None:
    here, (site, folder) = installations(None)[0], made_site(tmp_path)
    assert configuration_of(here, site, folder, tmp_path, 2) == configuration_of(here, site, folder, tmp_path)


def test_the_tables_sum_up_the_runs() -> None:
    suites = {"contract of the bus": SuiteCount(2, 1, 0, ("test_x",))}
    runs = {("tls", "broker killed"): [RUN, RUN | {"cloud_s": 6.0}, {"error": "TimeoutError"}]}
    text = tables([BrokerReport(EMQX, suites, runs, Limits(RETAINED, 0, 25_000, 1))])
    assert "| emqx 5.8.6 | compiled | 2 passed, 1 failed: test_x | 3,000 | 0 | 25,000 | held |" in text
    assert "| emqx 5.8.6 | tls | broker killed | 3, 1 failed | 200 | 194 | 6 | 0 | 2 | 4.5 to 6 | 31 to 31 |" in text


def test_a_broker_that_cannot_serve_a_site_shows_what_it_lacks_and_fails_nothing() -> None:
    suites = {"contract of the bus": SuiteCount(60, 40, 0, tuple(f"test_{number}" for number in range(40)))}
    missing = ["no shared subscriptions", "few in flight"]
    report = BrokerReport(Installation("rabbitmq", "4", ("start",), "its package"), suites, missing=missing)
    assert report.is_good
    text = tables([report])
    assert "| rabbitmq 4 | its package | 60 passed, 40 failed | not tried |" in text
    assert "| rabbitmq 4 | `no shared subscriptions`; `few in flight` |" in text


@pytest.mark.parametrize(
    ("suite", "limits", "row"),
    [
        (SuiteCount(1, 1, 0, ("test_x",)), None, RUN),
        (SuiteCount(1, 0, 0), Limits(RETAINED - 1, 0, 0, 1), RUN),
        (SuiteCount(1, 0, 0), Limits(RETAINED, 1, 0, 1), RUN),
        (SuiteCount(1, 0, 0), Limits(RETAINED, 0, 0, 2), RUN),
        (SuiteCount(1, 0, 0), None, RUN | {"lost_unnamed": 1}),
        (SuiteCount(1, 0, 0), None, {"error": "TimeoutError"}),
    ],
)
def test_a_failed_test_a_lost_frame_and_lost_state_fail_the_run(
    suite: SuiteCount, limits: Limits | None, row: dict[str, object]
) -> None:
    good = BrokerReport(EMQX, {"contract": SuiteCount(1, 0, 0)}, {("tls", "broker killed"): [RUN]})
    assert good.is_good
    assert not BrokerReport(EMQX, {"contract": suite}, {("tls", "broker killed"): [row]}, limits).is_good
