"""Log lines: one form for our own, the libraries' and uncaught exceptions, with who says it and without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from halimede import log as our_log
from tests.programs import run_python

ROOT = Path(__file__).parents[2]
log = structlog.get_logger()


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HALIMEDE_LOG", "json")
    monkeypatch.delenv("HALIMEDE_LOG_LEVEL", raising=False)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def service(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that logs as a worker does."""
    told = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HALIMEDE_LOG": "json", **environment}
    start = "from halimede import log\nlog.configure(node='edge0', service='default/helmet', worker='w1')\n"
    return run_python("-c", start + textwrap.dedent(code), env=told)


def test_every_line_says_who_and_when(capsys: pytest.CaptureFixture[str]) -> None:
    our_log.configure(node="edge0", service="lc")
    log.info("insert", key="a/b", count=3, ratio=0.5, nothing=None, yes=True)
    (line,) = lines(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "insert", "level": "info", "node": "edge0", "service": "lc",
        "key": "a/b", "count": 3, "ratio": 0.5, "nothing": None, "yes": True,
    }  # fmt: skip


def test_a_lines_own_worker_stands_beside_the_process_that_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    our_log.configure(node="edge0", service="lc")
    log.warning("worker failed", worker="default/w1", frame="00ff")
    (line,) = lines(capsys)
    assert (line["node"], line["worker"], line["frame"]) == ("edge0", "default/w1", "00ff")


async def test_lines_of_other_threads_say_who_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    our_log.configure(node="edge0", worker="w1")
    await asyncio.get_running_loop().run_in_executor(None, log.info, "from a thread")
    assert [(line["node"], line["worker"]) for line in lines(capsys)] == [("edge0", "w1")]


@pytest.mark.parametrize(
    ("fields", "hidden"),
    [
        ({"password": "s3cret-value"}, True),
        ({"page_token": "s3cret-value"}, True),
        ({"clientSecret": "s3cret-value"}, True),
        ({"Authorization": "s3cret-value"}, True),
        ({"headers": {"X-Api-Key": "k", "authorization": ["s3cret-value"]}}, True),
        ({"url": "mqtt://gm:s3cret-value@broker:1883"}, True),
        ({"urls": ["https://u:s3cret-value@host/x"]}, True),
        ({"error": "cannot open mqtts://s3cret-value@broker: gone"}, True),
        ({"error": "GET https://host/model?version=3&token=s3cret-value failed"}, True),
        ({"error": "bad body {'password': 's3cret-value'}"}, True),
        ({"error": "refused: Bearer s3cret-value"}, True),
        ({"error": RuntimeError("https://u:s3cret-value@host")}, True),
        ({"a": {"b": {"c": {"d": {"e": {"f": "s3cret-value"}}}}}}, True),
        ({"error": "the value s3cret-value is only a word here"}, False),
    ],
)
def test_secrets_do_not_reach_the_log(
    fields: dict[str, Any], hidden: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in ("json", "console"):
        monkeypatch.setenv("HALIMEDE_LOG", form)
        our_log.configure(node="edge0")
        log.info("something", **fields)
        assert ("s3cret-value" not in capsys.readouterr().err) is hidden, form


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_in_a_traceback_do_not_reach_the_log(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALIMEDE_LOG", form)
    our_log.configure(node="edge0")
    try:
        raise ValueError("mqtt://gm:s3cret-value@broker is no address")
    except ValueError:
        log.exception("broke")
    said = capsys.readouterr().err
    assert "s3cret-value" not in said
    assert "ValueError: mqtt://***@broker is no address" in said


@pytest.mark.parametrize("text", ["127.0.0.1:1883", "mqtt://broker:1883", "a@b.c", "default/helmet", "key: value"])
def test_what_is_no_secret_stays(text: str) -> None:
    assert our_log.redact_text(text) == text


def test_a_field_that_cannot_be_json_is_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    our_log.configure()
    log.info("odd", path=Path("/x"), data=b"\x00", many={1, 2}, key=("a", 1))
    (line,) = lines(capsys)
    assert line["path"].endswith("Path('/x')")
    assert (line["data"], sorted(line["many"]), line["key"]) == ("b'\\x00'", [1, 2], ["a", 1])


def test_what_libraries_log_is_one_line_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    our_log.configure(node="edge0")
    our_log.configure(node="edge0")  # twice: no line comes twice
    logging.getLogger("aiohttp.server").warning("bad request from %s", "mqtt://u:pw@host")
    logging.getLogger("aiohttp.server").info("chatter")
    (line,) = lines(capsys)
    assert (line["event"], line["logger"]) == ("bad request from mqtt://***@host", "aiohttp.server")
    assert (line["level"], line["node"]) == ("warning", "edge0")


async def test_a_task_that_nobody_looked_at_is_a_line_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    our_log.configure(node="edge0")
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": "Task exception was never retrieved", "exception": KeyError("gone")})
    (line,) = lines(capsys)
    assert (line["level"], line["logger"], line["node"]) == ("error", "asyncio", "edge0")
    assert "KeyError: 'gone'" in line["exception"]


def test_a_librarys_broken_line_does_no_harm() -> None:
    ended = service("import logging; logging.getLogger('x').error('%d frames', 'many'); print('goes on')")
    assert [json.loads(text)["event"] for text in ended.stderr.splitlines()] == ["%d frames"]
    assert ended.stdout == "goes on\n"


def test_an_uncaught_exception_is_one_structured_line() -> None:
    ended = service("raise RuntimeError('the end, password=s3cret-value')")
    assert ended.returncode == 1
    (line,) = map(json.loads, ended.stderr.splitlines())
    assert (line["event"], line["error"], line["level"]) == ("uncaught exception", "RuntimeError", "critical")
    assert (line["node"], line["service"], line["worker"]) == ("edge0", "default/helmet", "w1")
    assert "RuntimeError: the end, password=***" in line["exception"]


def test_an_uncaught_exception_of_a_thread_is_one_structured_line() -> None:
    ended = service(
        """
        import threading
        thread = threading.Thread(target=open, args=("/nowhere/gone",), name="paho")
        thread.start()
        thread.join()
        """
    )
    (line,) = map(json.loads, ended.stderr.splitlines())
    assert (line["event"], line["error"], line["thread"]) == ("uncaught exception", "FileNotFoundError", "paho")
    assert line["node"] == "edge0"


def test_a_log_that_cannot_be_written_does_not_end_the_service() -> None:
    ended = service(
        """
        import os, structlog
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        structlog.get_logger().error("nobody hears this")
        print("goes on", flush=True)
        os._exit(0)
        """
    )
    assert (ended.stdout, ended.returncode) == ("goes on\n", 0)


@pytest.mark.parametrize(("level", "heard"), [("DEBUG", 2), ("INFO", 1), ("ERROR", 0), ("nonsense", 1)])
def test_the_level_is_the_environments(
    level: str, heard: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALIMEDE_LOG_LEVEL", level)
    our_log.configure()
    log.debug("a")
    log.info("b")
    assert len(lines(capsys)) == heard
