"""Manifests are read as YAML 1.2, checked before anything is sent, and refused with file, document and line."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from halimede.api import admit
from halimede.cli.manifests import ManifestError, load
from halimede.cli.output import to_yaml
from halimede.system.bounded_yaml import bounded_yaml

MODEL = """\
apiVersion: sedna.io/v1alpha1
kind: Model
metadata: {{name: {name}}}
spec:
  url: {url}
  format: onnx
"""


def model(name: str = "small", url: str = "/models/small.onnx") -> str:
    return MODEL.format(name=name, url=url)


SERVICE = """\
apiVersion: sedna.io/v1alpha1
kind: JointInferenceService
metadata: {name: helmet}
spec:
  edgeWorker:
    model: {name: small}
    hardExampleMining: {name: IBT}
    template: {spec: {nodeName: edge0, containers: [{image: x}]}}
  cloudWorker:
    model: {name: big}
    template: {spec: {nodeName: cloud0, containers: [{image: x}]}}
"""


COUNT = """\
apiVersion: sedna.io/v1alpha1
kind: MultiEdgeInferenceService
metadata: {name: count}
spec:
  application: {name: count}
"""


def write(folder: Path, text: str, name: str = "m.yaml") -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return str(file)


def error_of(path: str) -> str:
    with pytest.raises(ManifestError) as caught:
        load([path])
    return str(caught.value)


def names(paths: list[str]) -> list[str]:
    return [f"{m.resource.kind.kind}/{m.resource.metadata.name}" for m in load(paths)]


def test_models_and_datasets_go_before_the_services_that_name_them(tmp_path: Path) -> None:
    dataset = model("data").replace("kind: Model", "kind: Dataset").replace("onnx", "txt")
    text = "---\n".join([SERVICE, dataset, model("small"), model("big")])
    ordered = ["Model/small", "Model/big", "Dataset/data", "JointInferenceService/helmet"]
    assert names([write(tmp_path, text)]) == ordered


def test_a_folder_is_read_with_its_subfolders_in_order_of_names(tmp_path: Path) -> None:
    write(tmp_path, model("b"), "2.yaml")
    write(tmp_path, model("a"), "1.yml")
    write(tmp_path, model("c"), "sub/3.yaml")
    write(tmp_path, "not: a manifest", "readme.txt")
    assert names([str(tmp_path)]) == ["Model/a", "Model/b", "Model/c"]


def test_files_of_a_folder_that_are_no_manifests_are_skipped_and_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, model("a"), "1.yaml")
    others = {
        "annotations.json": '{"images": [], "kind": 5}'.replace("kind", "mankind"),
        "build.json": '{"tasks": [{"kind": "build", "apiVersion": 1}]}',
        "data/labels.json": '["cat", "dog"]',
        "empty.yaml": "# nothing yet",
        "broken.json": "{",
        "large.json": " " * ((4 << 20) + 1),
        "text.yml": "just text",
    }
    for name, text in others.items():
        write(tmp_path, text, name)
    assert names([str(tmp_path)]) == ["Model/a"]
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    first = ", ".join(str(tmp_path / name) for name in sorted(others)[:5])
    assert shown == f"skipped files without apiVersion and kind: {first} and 2 more\n"


@pytest.mark.parametrize("text", ["kind: Model\n", "apiVersion: sedna.io/v1alpha1\n", "kind: [", "[]\n---\nkind: x\n"])
def test_a_file_of_a_folder_with_either_of_them_is_meant_as_a_manifest(tmp_path: Path, text: str) -> None:
    write(tmp_path, model("a"), "1.yaml")
    wrong = write(tmp_path, text, "2.yaml")
    assert error_of(str(tmp_path)).startswith(wrong)


def test_a_file_without_them_is_an_error_where_it_is_given_itself_or_stands_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "{}", "data.json")
    assert error_of(path).startswith(f"{path}:1: document 1: kind: '' is not accepted: use one of Dataset")
    nothing = "there is no manifest in this folder, only files without apiVersion and kind"
    assert error_of(str(tmp_path)) == f"{tmp_path}: {nothing}: {path}"


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(model().encode())))
    assert names(["-"]) == ["Model/small"]


def test_what_get_prints_as_yaml_can_be_applied_again(tmp_path: Path) -> None:
    bodies = [m.resource.body for m in load([write(tmp_path, f"{model()}---\n{SERVICE}")])]
    again = write(tmp_path, to_yaml({"apiVersion": "v1", "kind": "List", "items": bodies}), "list.yaml")
    assert [m.resource.body for m in load([again])] == bodies


@pytest.mark.parametrize(
    "url", ["./models/x y.onnx", "models/x y.onnx", "file:./models/x y.onnx", "../f/models/x y.onnx"]
)
def test_a_relative_url_is_relative_to_its_manifest(tmp_path: Path, url: str) -> None:
    path = write(tmp_path, model(url=url), "f/m.yaml")
    found = load([path])[0]
    assert found.resource.spec.url == (tmp_path / "f" / "models" / "x y.onnx").as_uri()
    assert found.resource.body["spec"]["url"].endswith("/f/models/x%20y.onnx")
    assert found.missing == tmp_path / "f" / "models" / "x y.onnx"


@pytest.mark.parametrize("url", ["/a/b.onnx", "file:///a/b.onnx", "https://example.org/b.onnx", "s3://bucket/b.onnx"])
def test_an_absolute_url_stays_as_it_is(tmp_path: Path, url: str) -> None:
    assert load([write(tmp_path, model(url=url))])[0].resource.spec.url == url


@pytest.mark.parametrize("given", [".", "./", "../f", "/elsewhere"])
def test_a_relative_working_folder_is_relative_to_its_manifest(tmp_path: Path, given: str) -> None:
    worker = f"{{name: w, model: {{name: m}}, template: {{spec: {{containers: [{{name: c, workingDir: {given}}}]}}}}}}"
    text = f"{COUNT}  edgeWorkers: [{worker}]\n"
    (found,) = load([write(tmp_path, text, "f/m.yaml")])
    expected = Path(given) if given.startswith("/") else tmp_path / "f"
    assert found.resource.spec.edge_workers[0].template["spec"]["containers"][0]["workingDir"] == str(expected)
    assert found.missing is None


@pytest.mark.parametrize("given", ["votes.py:Few", "./votes.py:Few", "../f/votes.py:Few"])
def test_a_rule_beside_its_manifest_is_named_by_its_whole_path(tmp_path: Path, given: str) -> None:
    path = write(tmp_path, SERVICE.replace("{name: IBT}", f"{{name: '{given}'}}"), "f/m.yaml")
    (found,) = load([path])
    assert found.resource.spec.edge_worker.hard_example_mining.name == f"{tmp_path}/f/votes.py:Few"
    assert found.missing == tmp_path / "f" / "votes.py"
    (tmp_path / "f" / "votes.py").touch()
    assert load([path])[0].missing is None


@pytest.mark.parametrize("name", ["votes:Few", "/elsewhere/votes.py:Few", "Margin"])
def test_any_other_name_of_a_rule_stays_as_it_is(tmp_path: Path, name: str) -> None:
    (found,) = load([write(tmp_path, SERVICE.replace("{name: IBT}", f"{{name: '{name}'}}"))])
    assert found.resource.spec.edge_worker.hard_example_mining.name == name


def test_a_namespace_is_for_those_that_name_none(tmp_path: Path) -> None:
    other = model("b").replace("{name: b}", "{name: b, namespace: mine}")
    path = write(tmp_path, f"{model('a')}---\n{other}")
    assert [m.resource.metadata.namespace for m in load([path], "factory")] == ["factory", "mine"]


def test_yaml_is_read_as_1_2(tmp_path: Path) -> None:
    text = SERVICE.replace("{name: IBT}", "{name: no, parameters: [{key: k, value: 24:00}]}")
    mining = load([write(tmp_path, text)])[0].resource.spec.edge_worker.hard_example_mining
    assert (mining.name, mining.parameters[0].value) == ("no", "24:00")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "it contains no resource"),
        ("---\n---\n", "it contains no resource"),
        ("a: 1\na: 2\n", 'found duplicate key "a"'),
        ("just text", "write a mapping"),
        ("[1, 2]", "write a mapping"),
        ("x: !python/object:os.system {}", "not valid YAML"),
        ("[" * 1100, "nested more than 100 levels deep: flatten it"),
        ("a: &a [*a]", "nest at most 100"),
        ("x: 0x_", "m.yaml:1: document 1: not valid YAML: '0x_' is no int"),
        ("a: 1\nx: !!bool x", "m.yaml:2: document 1: not valid YAML: 'x' is no bool: correct it, or quote it"),
        ("x: !!int ''", "not valid YAML: '' is no int"),
        ("x: 2024-13-45", "not valid YAML: '2024-13-45' is no timestamp"),
        (model("Böse"), "metadata.name: 'Böse' is not accepted"),
        (model("../../etc"), "metadata.name"),
        (model().replace("sedna.io/v1alpha1", "sedna.io/v1"), "apiVersion: 'sedna.io/v1' is not accepted: use"),
        (model().replace("kind: Model", "kind: Modle"), "kind: 'Modle' is not accepted: use one of"),
        (model().replace("onnx\n", "5\n"), "put it in quotes"),
        (model() + "stauts: {}\n", "stauts"),
        (model(url='"a\\0b"'), "spec.url"),
        (SERVICE.replace("nodeName: edge0", "nodeName: 'a/b'"), "nodeName"),
        (SERVICE.replace("spec: {nodeName: edge0", "? [a, b] : c, spec: {nodeName: edge0"), "document 1"),
        (f"{model()}---\n{SERVICE.replace('{name: big}', '{nam: big}')}",
         "m.yaml:17: document 2: spec.cloudWorker.model.nam: 'big' is not accepted: did you"),
        (model() + "  preprocess:\n    - {op: grayscale}\n    - {op: resize, width: no, height: 8}\n",
         "m.yaml:9: document 1: spec.preprocess[1].width: 'no'"),
        (f"{model()}---\na: [1\nb: 2\n", "document 2: not valid YAML"),
        (model(""), "metadata.name: None is not accepted: it is required: add it"),
        (SERVICE.replace("{image: x}", "{image: x, args: [a, null]}", 1), "containers[0].args[1]"),
        *((model() + f"  preprocess: [{{op: scale, factor: {number}}}]\n",
           f"spec.preprocess[0].factor: {float(number.replace('.', ''))} is not accepted: write a finite number")
          for number in (".nan", ".inf", "-.inf")),
        *((f"{COUNT}  {worker}\n", "is not accepted") for worker in (
            "edgeWorkers: [3]", "edgeWorkers: 3", "cloudWorker: {template: {spec: {containers: 3}}}")),
    ],
)  # fmt: skip
def test_whatever_is_wrong_is_one_clear_line(tmp_path: Path, text: str, part: str) -> None:
    message = error_of(write(tmp_path, text))
    assert part in message
    assert message.startswith(f"{tmp_path / 'm.yaml'}")
    assert "\n" not in message


def bomb(levels: int) -> str:
    """A document of anchors that multiply: each level has ten of the one before it."""
    lists = (f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(levels))
    return "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(lists)


def merges(levels: int) -> str:
    """A document of a public report (yaml/pyyaml issue 897): each level merges the one before it twice."""
    lines = ["L0: &L0 {k0_0: v0}"]
    for level in range(1, levels + 1):
        fields = ", ".join(f"k{level}_{i}: v{level}" for i in range(1 << min(level, 3)))
        lines.append(f"L{level}: &L{level} {{<<: [*L{level - 1}, *L{level - 1}], {fields}}}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[" * 3000, "nested more than 100 levels"),
        ('{"a":' * 600, "nested more than 100 levels"),
        (bomb(8), "use fewer than 100000 values"),
        ("- " * 1500 + "x", "nested more than 100 levels"),
        (merges(18), "merges (<<) copy more than 100000 fields"),
        # of nodeca/js-yaml pull request 797: empty mappings cost time, too
        (f"a: &a [{', '.join(['{}'] * 400)}]\nb:\n" + "- {<<: *a}\n" * 400, "merges (<<) copy more than 100000"),
    ],
)
def test_text_that_costs_more_than_its_length_is_refused_in_its_line(tmp_path: Path, text: str, part: str) -> None:
    message = error_of(write(tmp_path, text))
    assert part in message
    assert message.startswith(f"{tmp_path / 'm.yaml'}:")


def test_merges_that_people_write_are_read() -> None:
    text = "x: &x {a: 1, b: 2}\ny: &y {<<: *x, b: 3}\nz: {<<: [*y, *x]}\n"
    assert bounded_yaml().load(text)["z"] == {"a": 1, "b": 3}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_files_that_windows_wrote_or_joined_are_read(tmp_path: Path, encoding: str) -> None:
    """PowerShell redirects into UTF-16 (kubernetes/kubernetes issue 39007); joined files have a mark each."""
    mark = "\ufeff" if encoding in {"utf-8", "utf-16-le", "utf-16-be"} else ""
    text = f"{mark}{model('a')}---\r\n\ufeff{model('b')}\ufeff---\n{model('c')}"
    (tmp_path / "m.yaml").write_bytes(text.encode(encoding))
    assert names([str(tmp_path)]) == ["Model/a", "Model/b", "Model/c"]


def test_a_field_without_a_value_is_an_absent_one(tmp_path: Path) -> None:
    text = model().replace("{name: small}", "{name: small, annotations: , labels: null}") + "status: ~\n"
    [manifest] = load([write(tmp_path, text)])
    assert manifest.resource.body["metadata"] == {"name": "small"}
    pod = "metadata: , spec: {nodeSelector: , volumes: , nodeName: edge0, containers: [{image: x, args: , env: }]}"
    text = SERVICE.replace("spec: {nodeName: edge0, containers: [{image: x}]}", pod, 1)
    template = load([write(tmp_path, text)])[0].resource.spec.edge_worker.template
    assert template == {"spec": {"nodeName": "edge0", "containers": [{"image": "x"}]}}


def test_an_error_of_a_pod_template_is_named_once(tmp_path: Path) -> None:
    text = SERVICE.replace("{image: x}", "{image: x, env: [{name: A, value: 8080}]}", 1)
    with pytest.raises(ManifestError) as caught:
        load([write(tmp_path, text)], check=admit)
    assert not caught.value.further_errors
    field = "spec.edgeWorker.template.spec.containers[0].env[0].value"
    assert f"m.yaml:8: document 1: {field}: 8080 is not accepted" in str(caught.value)


def test_a_name_that_does_not_match_is_corrected_in_words(tmp_path: Path) -> None:
    text = SERVICE.replace("    template:", "    source: {cameras: [front_door, Hof]}\n    template:", 1)
    with pytest.raises(ManifestError) as caught:
        load([write(tmp_path, text)])
    errors = [str(error) for error in (caught.value, *caught.value.further_errors)]
    assert len(errors) == 2
    for error, name in zip(errors, ("front_door", "Hof"), strict=True):
        assert f"{name!r} is not accepted: use 1 to 63 lower-case letters, digits and '-'" in error
        assert "regex" not in error


def test_files_that_are_no_text_missing_or_too_large_are_named(tmp_path: Path) -> None:
    for content, part in (
        (b"\xff\xf0\x00", "not UTF-8"),
        (b"\xff\xfe\x00", "not UTF-16: give a manifest in UTF-8"),
        (b"# " + b"x" * (4 << 20), "larger than 4 MiB"),
    ):
        (tmp_path / "b.yaml").write_bytes(content)
        assert part in error_of(str(tmp_path / "b.yaml"))
    (tmp_path / "empty").mkdir()
    assert "there is no such file" in error_of(str(tmp_path / "absent.yaml"))
    assert "no .yaml" in error_of(str(tmp_path / "empty"))


def test_one_resource_in_two_places_is_refused(tmp_path: Path) -> None:
    one, two = write(tmp_path, model(), "1.yaml"), write(tmp_path, model(), "2.yaml")
    message = error_of(str(tmp_path))
    assert one in message
    assert two in message


def test_dates_become_the_text_that_was_written(tmp_path: Path) -> None:
    text = SERVICE.replace("containers: [{image: x}]", "containers: [{image: x}], hint: 2026-01-01", 1)
    template: Any = load([write(tmp_path, text)])[0].resource.spec.edge_worker.template
    assert template["spec"]["hint"] == "2026-01-01"


def test_a_path_that_no_file_can_have_is_one_that_is_not_here(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for url in ("x" * 3000, "circle/data.csv", "circle"):
        (found,) = load([write(tmp_path, model(url=url).replace("Model", "Dataset").replace("onnx", "csv"))])
        assert found.missing == tmp_path / url


def test_all_errors_of_all_manifests_are_reported_at_once(tmp_path: Path) -> None:
    wrong = model("A").replace("format: onnx", "fromat: onnx")
    write(tmp_path, f"{wrong}---\n{model('good')}---\n{model('small', url='small?')}", "1.yaml")
    write(tmp_path, f"{model('B')}---\nkind: [", "2.yaml")
    write(tmp_path, model("good"), "3.yaml")
    with pytest.raises(ManifestError) as caught:
        load([str(tmp_path), str(tmp_path / "nowhere")])
    shown = [str(error).removeprefix(f"{tmp_path}/") for error in (caught.value, *caught.value.further_errors)]
    begins = [
        "1.yaml:3: document 1: metadata.name: 'A' is not accepted",
        "1.yaml:6: document 1: spec.fromat: 'onnx' is not accepted: did you mean format?",
        "2.yaml:3: document 1: metadata.name: 'B' is not accepted",
        "2.yaml:8: document 2: not valid YAML",
        "nowhere: there is no such file or folder",
        "3.yaml, document 1: default/models/good is already in",
    ]
    assert [line[: len(begin)] for line, begin in zip(shown, begins, strict=True)] == begins


def test_what_a_worker_would_not_start_with_is_not_applied_and_can_be_deleted(tmp_path: Path) -> None:
    path = write(tmp_path, SERVICE.replace("{name: IBT}", "{name: IBT, parameters: [{key: treshold_img, value: '1'}]}"))
    with pytest.raises(ManifestError, match=r"m.yaml:7: document 1: .*parameters.treshold_img: '1' is not accepted"):
        load([path], check=admit)
    assert [each.resource.metadata.name for each in load([path])] == ["helmet"]
