"""The README and Mosquitto's tools, typed in as they stand there; and every command of the documents is run, or listed.

Commands stand in blocks of the language ``sh``, and within sentences. ``RUN`` names the test that types a document's
blocks, ``NOT_RUN`` what no test can run, and why. The commands, options, modules, targets and files of all exist.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from halimede.cli.app import COMMANDS, app, load
from halimede.programs import PROGRAMS
from tests.e2e.running import ROOT, System, digits, running
from tests.e2e.shell import begin, blocks, end_of, environment
from tests.programs import run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

#: where a system keeps its files when nobody says otherwise, below the user's home
HOME = ".local/state/halimede"
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
#: the test that types the blocks of a document
RUN = {
    "README.md": "tests/e2e/test_documentation.py",
    "docs/calibration.md": "tests/e2e/test_typed_pages.py",
    "docs/commands.md": "tests/e2e/test_typed_pages.py",
    "docs/datasets.md": "tests/e2e/test_documentation.py",
    "docs/deploy.md": "tests/kubernetes/test_deploy_documentation.py",
    "docs/detectors-and-readers.md": "tests/e2e/test_detectors_and_readers.py",
    "docs/emqx.md": "tests/integration/test_security_documentation.py",
    "docs/hard-samples.md": "tests/integration/test_hard_samples.py",
    "docs/install.md": "tests/e2e/test_wheel.py",
    "docs/learning-loop.md": "tests/e2e/test_learning_loop.py",
    "docs/kubeedge.md": "tests/kubernetes/test_deploy_documentation.py",
    "docs/kubernetes.md": "tests/kubernetes/test_deploy_documentation.py",
    "docs/multi-edge.md": "tests/e2e/test_multi_edge_documentation.py",
    "docs/mqtt.md": "tests/e2e/test_mqtt_documentation.py",
    "docs/security.md": "tests/integration/test_security_documentation.py",
    "docs/processing.md": "tests/unit/cli/test_inspect.py",
    "docs/serving.md": "tests/e2e/test_typed_pages.py",
    "docs/three-machines.md": "tests/e2e/test_three_machines.py",
    "docs/tiers.md": "tests/e2e/test_tiers.py",
    "docs/training.md": "tests/e2e/test_typed_pages.py",
    "docs/tutorial.md": "tests/e2e/test_tutorial.py",
    "docs/upgrade-and-removal.md": "tests/e2e/test_upgrade_and_removal.py",
}
#: how commands begin that no test runs, and why; of each the parts are checked below
NOT_RUN = {
    "docker ": "needs a Docker daemon",
    "sudo apt install mosquitto": "changes the machine; the tests have it",
    "sudo install -": "needs a package of EMQX, and changes the machine",
    "sudo cp -n /etc/emqx": "needs a package of EMQX, and changes the machine",
    "sudo sh -c": "needs a package of EMQX, and changes the machine",
    "sudo systemctl restart emqx": "needs a package of EMQX, and changes the machine",
    "sudo emqx ": "needs a package of EMQX, and changes the machine",
    "kubectl -n halimede rollout": "needs controllers that make pods",
    "kubectl -n halimede exec": "needs a kubelet",
    "kubectl -n halimede port-forward": "needs a kubelet",
    "kubectl create secret generic camera-": "needs a site and the address of a real camera",
    "prometheus --config.file": "has no end; tests/e2e/test_monitoring.py runs it with this configuration",
    "python -m scripts.monitoring": "tests/unit/monitoring runs it with another folder",
    "kubectl apply -k deploy/camera": "rendered and checked by tests/kubernetes, not applied",
    "halimede certs add --camera door": "needs the site of another page, whose commands are run",
    "halimede events --occupancy yard": "has no end; tests/integration/cli/test_following.py follows a service",
    "mosquitto_sub -t 'default/sedna/inference/yard/occupancy/+'": "has no end, and needs that service",
    "halimede bridge homeassistant": "has no end; tests/integration/test_homeassistant_bridge.py runs it",
    "halimede certs add --consumer homeassistant": "needs the site of another page, whose commands are run",
    "halimede seen lobby": "needs identities; tests/integration/cli/test_seen.py asks a service that has some",
    "halimede publish street.mp4": "needs a video, and has no end",
    "halimede publish rtsp:": "needs a camera at an address of a document",
    "halimede publish @door.url": "needs a camera at an address of a document",
    "halimede camera --camera": "needs cameras at addresses of a document",
    "CAMERA=door": "needs a camera at an address of a document",
    "make ": "takes the whole machine; make test runs what is below each target",
    ". .venv/bin/activate": "the tests run in that environment",
    "mkdir -p build/site/operators": "a line of the Docker host's block",
    "export HALIMEDE_CREDENTIALS": "a line of the Docker host's block",
}


def commands(document: str) -> list[str]:
    """Return the lines of all fenced blocks of the language ``sh``, without comments."""
    lines = [line for block in blocks(document, "sh") for line in block.splitlines()]
    return [command for line in lines if (command := re.split(r"\s+# ", line)[0].strip())]


async def typed(system: System, document: str, line: str) -> asyncio.subprocess.Process:
    """Type a line, behind what was exported before it, as the user in whose home the system is."""
    exports = [command for command in commands(document) if command.startswith("export ")]
    user = str(system.home).removesuffix(f"/{HOME}")
    return await begin("\n".join([*exports, f"exec {line}"]), environment("", HOME=user))


def test_every_make_word_of_the_documentation_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join((ROOT / document).read_text() for document in DOCUMENTS)
    assert set(re.findall(r"`?\bmake ([a-z-]+)", "\n".join(re.findall(r"`(make [^`]*)`", text)))) <= targets
    assert {
        line.split()[1] for document in DOCUMENTS for line in commands(document) if line.startswith("make ")
    } <= targets


def spans() -> Iterator[tuple[str, str]]:
    """Yield each document's commands: the lines of its blocks, and the code within its sentences."""
    for document in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)
        yield from ((document, line) for line in commands(document))
        yield from ((document, span.replace("\\|", "|")) for span in re.findall(r"`([^`\n]+)`", text))


def parts(program: str) -> list[tuple[str, list[str]]]:
    """Return the words of all commands of a program, each with its document."""
    found = []
    for document, line in spans():
        for part in re.split(r"\s(?:\||&&)\s", line):
            words = [word for word in part.split() if not re.fullmatch(r"[A-Z_]+=\S+", word)]
            if words[:1] == [program] and len(words) > 1:
                found.append((document, words))
    return found


def test_every_command_of_a_block_is_run_by_a_test_or_listed() -> None:
    for document in DOCUMENTS:
        left = [line for line in commands(document) if not line.startswith(tuple(NOT_RUN))]
        if left:
            assert document in RUN, f"{document}: no test types {left[0]}"
            assert document in (ROOT / RUN[document]).read_text(), RUN[document]
    everything = [line for document in DOCUMENTS for line in commands(document)]
    assert all(any(line.startswith(start) for line in everything) for start in NOT_RUN)


def option_names(command: click.Command) -> set[str]:
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}


def test_every_command_of_halimede_has_the_options_that_the_documents_give() -> None:
    found = parts("halimede")
    assert len(found) > 150
    root = typer.main.get_command(app)
    for document, words in found:
        known, rest = option_names(root) | {"--help", "-h", "--install-completion", "--version"}, words[1:]
        if re.fullmatch("[a-z]+", rest[0]):
            assert rest[0] in COMMANDS, f"{document}: {' '.join(words)}"
            command: Any = load(rest.pop(0))
            while hasattr(command, "commands") and rest and rest[0] in command.commands:
                command = command.commands[rest.pop(0)]
            known |= option_names(command)
            if words[1] in PROGRAMS:  # they have command lines of their own
                known |= set(re.findall(r"--?[a-z-]+", help_of("halimede", words[1])))
        unknown = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)} - known
        assert not unknown, f"{document}: {' '.join(words)}: {unknown}"


@functools.cache
def help_of(*words: str) -> str:
    return run_python("-m", *words, "--help", cwd=ROOT, check=True).stdout


def test_every_module_that_the_documents_start_is_there_with_its_options() -> None:
    found = [(document, words[2:]) for document, words in parts("python") if words[1] == "-m" and len(words) > 2]
    assert len(found) > 25
    for document, (module, *rest) in found:
        assert importlib.util.find_spec(module), f"{document}: {module}"
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        if options and "compat" not in module:
            assert options <= set(re.findall(r"--[a-z-]+", help_of(module))), f"{document}: {module} {options}"


def test_every_file_of_a_command_is_there() -> None:
    for document, line in spans():
        if line.split()[0] in {"docker", "kubectl", "halimede", "mosquitto_pub", "python"}:
            for path in re.findall(r"(?<![\w/.-])(?:deploy|examples|services|scripts)/[\w./-]+", line):
                made = re.match(r"examples/\w+/(models|pictures)|deploy/halimede-broker", path)
                assert made or (ROOT / path).exists(), f"{document}: {path}"


def fields(body: Any, schema: dict[str, Any], at: str) -> Iterator[str]:
    """Yield the fields that a CustomResourceDefinition does not have."""
    if isinstance(body, dict) and "properties" in schema:
        for name, value in body.items():
            if name not in schema["properties"]:
                yield f"{at}.{name}"
            else:
                yield from fields(value, schema["properties"][name], f"{at}.{name}")
    elif isinstance(body, list) and "items" in schema:
        for value in body:
            yield from fields(value, schema["items"], at)


def test_every_resource_of_the_documents_has_fields_of_its_definition() -> None:
    definitions = {}
    for path in (ROOT / "deploy" / "crds").glob("*_*.yaml"):
        definition = yaml.safe_load(path.read_text())["spec"]
        schema = definition["versions"][0]["schema"]["openAPIV3Schema"]
        definitions[definition["group"], definition["names"]["kind"]] = schema
    seen = 0
    for document in DOCUMENTS:
        for block in blocks(document, "yaml"):
            for body in yaml.safe_load_all(block.replace("{...}", "{}").replace("...", "x")):
                if isinstance(body, dict) and {"apiVersion", "kind"} <= body.keys():
                    schema = definitions[body["apiVersion"].partition("/")[0], body["kind"]]
                    assert not list(fields({**body, "metadata": {}}, schema, body["kind"])), document
                    seen += 1
    assert seen >= 4


def test_the_dataset_command_counts_without_a_system(tmp_path: Path) -> None:
    (line,) = commands("docs/datasets.md")
    (tmp_path / "train.csv").write_text("file,label\na,helmet\nb,bare\n")
    words = shlex.split(line.replace("/data/helmets", str(tmp_path)))
    done = run_python(*words[1:], cwd=ROOT, check=True)
    assert json.loads(done.stdout)["facts"]["numberOfSamples"] == 2


#: words of the README, and what it links to in its list
MOST_WORDS, LINKS = 700, 5


def test_the_readme_is_one_screen() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= MOST_WORDS
    assert len(re.findall(r"^\d\. ", text, re.MULTILINE)) == LINKS
    assert [line for line in commands("README.md") if line.startswith("make ")][:2] == ["make demo", "make test"]
    assert re.search(r"!\[[^\]]+\]\(docs/[a-z-]+\.svg\)", text)


async def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    lines = [line for line in commands("README.md") if line.startswith("halimede")]
    assert [line.split()[1] for line in lines] == ["apply", "publish", "status"]
    digits()
    async with running(tmp_path / HOME) as system:
        await system.follow("digits")
        for line in lines:
            if "publish" in line:
                await system.until_running()
            await end_of(line, await typed(system, "README.md", line))
        await system.until("answers", lambda: len(system.results) >= 100)


async def test_a_service_ends_in_all_that_follow_it(tmp_path: Path) -> None:
    document = "docs/mqtt.md"
    subscribe, publish = (line for line in commands(document) if line.startswith("mosquitto_"))
    digits()
    async with running(tmp_path / HOME) as system:
        await system.follow("digits")
        results = await typed(system, document, "halimede results -f digits")
        subscription = await typed(system, document, subscribe)
        apply = "halimede apply -f examples/digits/"
        await end_of(apply, await typed(system, document, apply))
        await system.until_running()
        for line in ("halimede publish examples/digits/pictures --camera cam0", publish):
            await end_of(line, await typed(system, document, line))
        await system.until("answers", lambda: len(system.results) >= 101)
        delete = "halimede delete -f examples/digits/"
        await end_of(delete, await typed(system, document, delete))
        await system.until("status cleared", lambda: system.status is None)
        shown = await end_of("results", results)  # it ends with its service
        assert len(shown.splitlines()) >= 101, shown
        assert "was deleted: no more results" in shown, shown
        subscription.terminate()
        shown = (await subscription.communicate())[0].decode()
        assert '"phase":"Running"' in shown.replace(" ", "")
        # with the service its models went: their statuses are cleared in any order
        assert "default/sedna/status/jointinferenceservices/digits (null)" in shown, shown[-500:]
