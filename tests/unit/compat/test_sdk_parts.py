"""The parts of Sedna's SDK around inference: parameters, files, data sources, and names with nothing behind them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from halimede.compat.sedna import environment
from halimede.compat.sedna.common.config import BaseConfig, Context
from halimede.compat.sedna.common.file_ops import FileOps
from halimede.compat.sedna.core.base import model_path
from halimede.compat.sedna.core.multi_edge_inference.components.detector import ObjectDetector
from halimede.compat.sedna.core.multi_edge_inference.components.feature_extraction import FEService
from halimede.compat.sedna.core.multi_edge_inference.components.reid import ReID
from halimede.compat.sedna.core.multi_edge_inference.data_classes import DetTrackResult, Target
from halimede.compat.sedna.core.multi_edge_inference.plugins import PluggableModel
from halimede.compat.sedna.core.multi_edge_inference.plugins.registered import ReID_I
from halimede.compat.sedna.datasources import CSVDataParse, TxtDataParse
from halimede.compat.sedna.unsupported import NotThereError
from halimede.errors import HalimedeError, InvalidFieldError
from tests.ports import free_port
from tests.programs import run_python


def test_parameters_are_found_as_written_then_in_upper_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIDEO_URL", "upper")
    assert Context.get_parameters("video_url") == "upper"
    monkeypatch.setenv("video_url", "as written")
    assert Context.get_parameters("video_url") == "as written"
    assert Context.get_parameters("no_such", 5) == 5
    monkeypatch.setenv("VIDEO_URL", "")
    assert Context.get_parameters("VIDEO_URL", "default") == "default"


def test_the_configuration_is_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_NAME", "helmet")
    monkeypatch.setenv("DEVICE_CATEGORY", "GPU")
    monkeypatch.delenv("TRAIN_DATASET_URL", raising=False)
    config = BaseConfig()
    assert (BaseConfig.service_name, config.service_name, config["service_name"]) == ("helmet",) * 3
    assert BaseConfig.is_gpu_device()
    assert not BaseConfig.is_torch_backend()
    assert config.get("train_dataset_url", "none") == "none"
    with pytest.raises(AttributeError, match="no modle_url"):
        getattr(BaseConfig, "modle" + "_url")


def test_a_model_in_a_folder_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Named:
        model_name = "small.onnx"

    monkeypatch.setenv("MODEL_URL", str(tmp_path))
    assert model_path(Named()) == str(tmp_path / "small.onnx")
    assert model_path(object()) == str(tmp_path)
    assert model_path(object(), "/told/big.onnx") == "/told/big.onnx"
    monkeypatch.delenv("MODEL_URL")
    assert model_path(Named()) == ""


def test_folders_are_emptied_and_made_but_never_through_a_link(tmp_path: Path) -> None:
    old, new, aside = tmp_path / "a" / "old", tmp_path / "a" / "new", tmp_path / "aside"
    (old / "deep").mkdir(parents=True)
    (old / "deep" / "file").write_text("x")
    aside.mkdir()
    (aside / "kept").write_text("x")
    (old / "link").symlink_to(aside)
    FileOps.clean_folder([str(old), str(new), None])
    assert (list(old.iterdir()), new.is_dir(), (aside / "kept").exists()) == ([], True, True)
    (new / "kept").write_text("x")
    FileOps.clean_folder(str(new), clean=False)
    assert (new / "kept").exists()


@pytest.mark.parametrize("path", ["/", "/tmp", "~", ".", ".."])
def test_a_folder_that_cannot_be_a_scripts_own_is_not_emptied(path: str) -> None:
    with pytest.raises(InvalidFieldError, match="deeper in the tree"):
        FileOps.clean_folder([str(Path(path).expanduser())])


def test_files_are_copied_and_told_apart(tmp_path: Path) -> None:
    source = tmp_path / "in" / "file"
    FileOps.make_base_dir(str(source))
    source.write_text("x")
    FileOps.copy_file(str(source), str(tmp_path / "out" / "copy"))
    FileOps.copy_folder(str(tmp_path / "in"), str(tmp_path / "out"))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["copy", "file"]
    assert FileOps.get_file_hash(str(source)) == FileOps.get_file_hash(str(tmp_path / "out" / "copy"))
    assert FileOps.join_path("/a/", "/b", "c") == "/a/b/c"
    assert FileOps.remove_path_prefix("/home/data/x", "/home/data/") == "/x"
    assert FileOps.download(f"file://{source}", str(tmp_path / "down")) == str(tmp_path / "down")
    assert (tmp_path / "down").read_text() == "x"


@pytest.mark.parametrize(
    "use",
    [
        lambda: FileOps.download("s3://bucket/model", "/tmp/x"),
        lambda: FileOps.upload("/etc/hostname", "s3://bucket/x"),
        lambda: FileOps.load_pickle("file"),
        lambda: FileOps.dump_pickle({}, "file"),
        lambda: CSVDataParse("train").parse("file", sep=";"),
        ReID,
        FEService,
        lambda: ObjectDetector(models=[]),
        ReID_I,
    ],
)
def test_what_is_not_there_says_so_in_a_sentence_when_it_is_used(use: object) -> None:
    with pytest.raises(NotThereError, match=r"^\S+: \S.{20,}") as caught:
        use()  # type: ignore[operator]
    assert isinstance(caught.value, HalimedeError)
    assert "\n" not in str(caught.value)


def test_text_lists_are_samples_and_labels(tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text("a.jpg 1\n\nb.jpg\n")
    data = TxtDataParse(data_type="train")
    data.parse(str(listed), str(tmp_path / "absent"))
    assert (data.x.tolist(), data.y.tolist(), len(data)) == (["a.jpg", "b.jpg"], ["1", "0"], 2)
    test = TxtDataParse(data_type="test", func=lambda line: line.upper().split())
    test.parse(str(listed), use_raw=False)
    assert (test.x.tolist(), test.y.tolist(), test.is_test_data) == (["A.JPG", "B.JPG"], [], True)


def test_tables_are_arrays_with_a_label(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b,kind\n1,2.5,x\n3,4,y\n")
    data = CSVDataParse(data_type="train")
    data.parse(str(table), label="kind")
    assert (data.x.tolist(), data.y.tolist(), data.columns) == ([[1, 2.5], [3, 4]], ["x", "y"], ["a", "b"])
    data.parse({"a": 1, "b": 2, "kind": 3}, label="kind", usecols="b")
    assert (data.x.tolist(), data.y.tolist()) == ([[2.0]], [3.0])
    with pytest.raises(InvalidFieldError, match="usecols"):
        data.parse(str(table), usecols=["a", "none"])
    data.save(str(tmp_path / "kept.npz"))
    assert np.load(tmp_path / "kept.npz")["x"].tolist() == [[2.0]]


def test_multi_edge_data_share_no_lists() -> None:
    one, other = DetTrackResult(camera=3), DetTrackResult(detection_time="Mon, 01 March 2021 10:00:00.5", camera=3)
    one.features.append(1)
    assert (other.features, one.image_key, other.image_key.endswith("_3")) == ([], "0", True)
    target = Target("user", [1.0])
    assert (target.targetid, target.frame_index) == ("0000", 0)


def test_a_pluggable_model_is_loaded_when_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(PluggableModel):
        def load(self, **_: object) -> None:
            self.text = Path(self.model_path).read_text()

        def update_plugin(self, update_object: object, **_: object) -> None: ...

        def predict(self, data: str) -> str:
            return self.text + data

    (tmp_path / "model").write_text("m")
    monkeypatch.setenv("MODEL_URL", str(tmp_path / "model"))
    assert Mine().inference("!", post_process=str.upper) == "M!"
    monkeypatch.setenv("MODEL_URL", "/nowhere")
    with pytest.raises(InvalidFieldError, match="MODEL_URL"):
        Mine()


def test_a_script_without_a_broker_ends_quietly() -> None:
    script = f"""
import atexit, os, numpy, time
os.environ |= {{"SERVICE_NAME": "x", "HALIMEDE_BROKER": "127.0.0.1:{free_port()}", "HEM_NAME": "CloudOnly"}}
import halimede.compat.sedna.cloud_client as asking
asking.FIRST_S = asking.LAST_S = 0.3
from halimede.compat.sedna.core.joint_inference import JointInference
class Small:
    def predict(self, data):
        return [1.0, 0.0]
service = JointInference(estimator=Small())
print(service.inference(numpy.zeros(4))[1])
atexit.register(time.sleep, 2)  # before it closes, when Python starts no more threads: it tries to connect anew
"""
    done = run_python("-c", script, check=True)
    assert "[1.0, 0.0]" in done.stdout
    assert not re.search("Traceback|has ended", done.stdout + done.stderr)


def test_a_service_that_cannot_be_one_is_named() -> None:
    with pytest.raises(InvalidFieldError, match="SERVICE_NAME: 'X_x'"):
        environment.settings("edge", {"SERVICE_NAME": "X_x"})
