"""The comparison of ways to the cloud and back: a short run of it, and what it makes of its figures."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import msgpack
import pytest

from bench import network, offload, offload_report
from bench.peers import WAYS, plain_model
from bench.peers.peer import check_echo, check_mean, echo, mean, sample
from bench.targets import of_control, of_offload

pytestmark = pytest.mark.slow

ROW = {
    "rtt_ms": 1.0,
    "rate": 100.0,
    "spread": {"rtt_ms": [1.0, 1.0], "rate": [99.0, 101.0]},
    "cpu_us": {"client": 10.0},
}


def test_a_short_run_writes_medians_spread_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "offload.json"
    short = ["--ways", "tcp,halimede", "--payloads", "256", "--rounds", "1", "--seconds", "0.1"]
    assert offload.main([*short, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert set(found) == {"payloads", "where"}
    assert set(found["payloads"]) == {"256"}
    assert list(found["payloads"]["256"]) == ["tcp", "halimede"]
    for row in found["payloads"]["256"].values():
        assert row["rtt_ms"] > 0
        assert row["rate"] > 0
        assert row["spread"]["rate"][0] <= row["rate"] <= row["spread"]["rate"][1]
    assert set(found["payloads"]["256"]["halimede"]["cpu_us"]) == {"client", "server", "broker"}
    assert out.with_suffix(".png").stat().st_size > 0
    printed = capsys.readouterr().out
    assert "256 bytes" in printed
    assert "halimede" in printed


def test_it_runs_in_a_network_of_its_own_and_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    mine = Path("/proc/thread-self/ns/net")
    here, machines = mine.readlink(), network.congestion()
    with network.chosen("own") as where:
        if where["network"] == "machine":
            pytest.skip("no network namespace may be made here")
        assert mine.readlink() != here
        assert where == {"network": "own", "congestion_control": "cubic", "of_the_machine": machines}
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), 5.0).close()
    assert mine.readlink() == here
    assert network.congestion() == machines
    with network.chosen("machine") as where:
        assert where["congestion_control"] == machines
    assert "network: machine" in capsys.readouterr().out


def test_a_profile_of_our_client_names_its_functions(capfd: pytest.CaptureFixture[str]) -> None:
    assert offload.main(["--profile", "client", "--payload", "256", "--seconds", "0.1"]) == 0
    printed = capfd.readouterr()
    assert "halimede, 256 bytes, 16 in flight, with a profile of the client" in printed.out
    assert "Ordered by: internal time" in printed.err
    assert "client.py" in printed.err


def test_medians_are_of_the_rounds_and_ways_stand_in_their_order() -> None:
    rounds = [{"rtt_ms": n, "rate": 10 * n, "count": 5, "client": n, "server": 2 * n} for n in (3.0, 1.0, 2.0)]
    found = {(256, way, flight): rounds for way in ("halimede", "tcp") for flight in (16, 1)}
    ways = offload_report.summary(found, 16)["payloads"]["256"]
    assert list(ways) == ["tcp", "halimede"]
    assert ways["tcp"] == {
        "rtt_ms": 2.0,
        "rate": 20.0,
        "spread": {"rtt_ms": [1.0, 3.0], "rate": [10.0, 30.0]},
        "cpu_us": {"client": 2.0, "server": 4.0},
    }


def test_a_way_that_broke_before_it_was_measured_is_left_out() -> None:
    rounds = [{"rtt_ms": 1.0, "rate": 10.0, "count": 5, "client": 1.0}]
    found = {(256, "tcp", 1): rounds, (256, "tcp", 16): rounds, (256, "paho", 1): rounds}
    assert list(offload_report.summary(found, 16)["payloads"]["256"]) == ["tcp"]


async def test_a_process_that_ends_breaks_its_way() -> None:
    async with offload.process("tcp", "nonsense") as child:
        with pytest.raises(offload.BrokenWayError, match="a process of tcp ended with 1"):
            await offload.said(child, "tcp", offload.START)


def test_every_target_of_the_sample_path_is_judged_once_all_ways_ran() -> None:
    ways = dict.fromkeys(WAYS, ROW) | {"halimede": ROW | {"rtt_ms": 0.5, "rate": 260.0}}
    met = {target.what: target.met for target in of_offload({"payloads": {"150528": ways, "921600": ways}})}
    assert len(met) == 12
    assert [what for what, good in met.items() if good] == [
        "150,528 bytes: answers a second, of those of libmosquitto",
        "150,528 bytes: more answers a second than grpc_aio",
        "150,528 bytes: more answers a second than grpc_aio_model",
        "150,528 bytes: more answers a second than paho",
        "150,528 bytes: more answers a second than aiomqtt",
        "150,528 bytes: round trip, of grpc_aio_model's",
        "150,528 bytes: round trip, of tcp's",
    ]


def test_the_congestion_control_of_the_run_decides_which_limits_hold() -> None:
    payloads = {"150528": dict.fromkeys(WAYS, ROW)}
    limits = {
        control: {
            target.what.rpartition(" ")[2]: target.limit
            for target in of_offload({"payloads": payloads, "where": {"congestion_control": control}})
            if "answers" in target.what
        }
        for control in ("cubic", "bbr", "reno")
    }
    paced = {"libmosquitto": 0.82, "grpc_aio": 1.5, "grpc_aio_model": 1.6}
    assert limits["bbr"] == limits["cubic"] | paced
    assert limits["reno"] == limits["cubic"]
    assert {name: limits["cubic"][name] for name in paced} == {
        "libmosquitto": 0.62,
        "grpc_aio": 1.3,
        "grpc_aio_model": 1.4,
    }


def test_a_plain_server_of_the_model_answers_as_ours_and_checks_the_header() -> None:
    model = plain_model.open_model()
    plain_model.check(256, 1, model.answer(plain_model.request(256, 1)))
    fitting = {"dtype": "uint8", "shape": [2, 2, 1], "data": bytes(4)}
    assert msgpack.unpackb(model.answer(msgpack.packb(fitting))) == {
        "label": "dark",
        "score": 1.0,
        "probabilities": [1.0, 0.0],
    }
    for wrong in ({"dtype": "float32"}, {"shape": [4]}, {"shape": [2, 2, 3]}):
        with pytest.raises(plain_model.WrongRequestError):
            model.answer(msgpack.packb(fitting | wrong))


def test_a_target_without_figures_is_not_shown() -> None:
    assert not list(of_offload({"payloads": {"256": {"halimede": ROW}, "150528": {"halimede": ROW}}}))
    assert [target.what for target in of_control({"lc_rss_mb": 70.0, "nodes": {}})] == ["LC: resident memory"]


def test_the_tables_name_every_way_and_every_target() -> None:
    found = {"payloads": {"150528": {"tcp": ROW, "halimede": ROW}}}
    text = offload_report.markdown(found, of_offload(found))
    assert "| tcp | 1.00 ms, 100/s |" in text
    assert "| **halimede** | 1.00 ms, 100/s |" in text
    assert "| 150,528 bytes: round trip, of tcp's | at most 5 x | 1 x | met |" in text


def test_the_tables_take_the_place_of_the_last_ones_in_a_page() -> None:
    page = f"before\n{offload_report.BEGIN}\nold\n{offload_report.END}\nafter\n"
    assert offload_report.filled(page, "new") == page.replace("old", "new")
    assert offload_report.filled(offload.DOCS.read_text(), "new") != ""
    with pytest.raises(SystemExit, match="has no"):
        offload_report.filled("a page without marks", "new")


def test_a_wrong_answer_ends_the_comparison() -> None:
    check_echo(256, 5, echo(256, 1))
    check_mean(256, 5, mean(256, 1))
    assert abs(mean(256, 1) - sample(256, 1).mean() / 255) < 1e-9
    with pytest.raises(SystemExit, match="wrong answer"):
        check_echo(256, 0, echo(256, 1))
    with pytest.raises(SystemExit, match="wrong mean"):
        check_mean(256, 0, mean(256, 1))


@pytest.mark.parametrize("wrong", [["--ways", "carrier-pigeon"], ["--payloads", "257"], ["--ways", ""]])
def test_what_is_not_known_is_refused_with_what_is(wrong: list[str]) -> None:
    with pytest.raises(SystemExit, match="choose of"):
        offload.main(wrong)
