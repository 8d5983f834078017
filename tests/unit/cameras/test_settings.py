"""What a camera's process is told, and which mistakes it names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from halimede.cameras.settings import read
from halimede.errors import InvalidFieldError
from services.worker.camera import broker_of, environment, parser


def test_one_camera_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hidden\n")
    told = {
        "CAMERA": "door", "SOURCE_URL": "rtsp://cam/x", "SOURCE_USERNAME": "me", "CAMERA_FPS": "10", "SOURCE_LOOP": "1",
        "SOURCE_PASSWORD_FILE": str(tmp_path / "password"), "CAMERA_MAX_WIDTH": "640", "NODE_NAME": "edge0",
    }  # fmt: skip
    settings = read(told)
    (camera,) = settings.cameras
    assert (camera.name, camera.address.target) == ("door", "rtsp://me:hidden@cam/x")
    assert (camera.fps, camera.max_width, camera.plays, camera.node) == (10.0, 640, 0, "edge0")
    assert (settings.namespace, settings.qos, settings.bare) == ("default", 1, False)
    assert "hidden" not in repr(settings)


def test_several_by_option_and_file(tmp_path: Path) -> None:
    (tmp_path / "door.url").write_text("rtsp://me:hidden@cam/x\n")
    (tmp_path / "more.json").write_text('{"yard": "http://cam/y"}')
    named = [f"door=@{tmp_path / 'door.url'}", "gate=/dev/video0"]
    settings = read({}, named, str(tmp_path / "more.json"))
    assert {c.name: c.address.shown for c in settings.cameras} == {
        "door": "rtsp://***@cam/x", "gate": "/dev/video0", "yard": "http://cam/y",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "named", "field"),
    [
        ({}, [], "CAMERA"),
        ({"CAMERA": "door"}, [], "SOURCE_URL"),
        ({"CAMERA": "a/b", "SOURCE_URL": "/x"}, [], "CAMERA"),
        ({"CAMERA": "a", "SOURCE_URL_FILE": "/nonexistent"}, [], "SOURCE_URL_FILE"),
        ({}, ["door"], "--camera"),
        ({}, ["a=/x", "a=/y"], "--camera"),
        ({}, ["door=rtsp://me:hidden@cam/x"], "--camera door"),
        ({}, ["door=@/nonexistent"], "--camera door"),
        ({"CAMERA_FPS": "many"}, ["a=/x"], "CAMERA_FPS"),
        ({"CAMERA_QUALITY": "0"}, ["a=/x"], "CAMERA_QUALITY"),
        ({"CAMERA_BARE": "perhaps"}, ["a=/x"], "CAMERA_BARE"),
        ({"NAMESPACE": "A B"}, ["a=/x"], "NAMESPACE"),
        ({}, [f"c{i}=/x" for i in range(65)], "--camera"),
    ],
)
def test_a_mistake_names_its_field_and_no_secret(environ: dict[str, str], named: list[str], field: str) -> None:
    with pytest.raises(InvalidFieldError, match=f"^{field}: ") as caught:
        read(environ, named)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"A": "/x"}', "\xff"])
def test_a_file_of_cameras_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "more.json").write_text(content, "latin-1")
    with pytest.raises(InvalidFieldError, match="--cameras"):
        read({}, [], str(tmp_path / "more.json"))


def test_each_camera_shows_the_broker_its_own_credentials_where_there_are_some(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "door"):
        folder.mkdir(exist_ok=True)
        (folder / "username").write_text(folder.name)
        (folder / "password").write_text("hidden")
    told = {"HALIMEDE_CREDENTIALS": str(tmp_path), "HALIMEDE_BROKER": "broker:1883"}
    settings = read(told, ["door=/dev/video0", "yard=/dev/video1"])
    users = {name: broker_of(settings, name, told).login()[0] for name in ("door", "yard")}
    assert users == {"door": "door", "yard": tmp_path.name}


def test_without_a_broker_it_is_that_of_the_system_which_runs_here(tmp_path: Path) -> None:
    run = {"broker": "mqtt://127.0.0.1:2999", "credentials": str(tmp_path), "pid": os.getpid()}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "username").write_text("operator.admin")
    (tmp_path / "password").write_text("hidden")
    environ = {"HALIMEDE_HOME": str(tmp_path)}
    found = broker_of(read(environ, ["door=/dev/video0"]), "door", environ)
    assert (found.port, found.login()[0]) == (2999, "operator.admin")


def test_an_option_comes_before_its_variable() -> None:
    options = parser().parse_args(["--camera", "a=/x", "--fps", "5", "--bare"])
    told = environment(options, {"CAMERA_FPS": "9", "CAMERA_QUALITY": "50"})
    settings = read(told, options.camera)
    assert (settings.cameras[0].fps, settings.cameras[0].quality, settings.bare) == (5.0, 50, True)
