"""deploy/camera: what its pod is told is what a camera's process reads, from an image that is built here."""

from __future__ import annotations

from pathlib import Path

from halimede.cameras.settings import read
from halimede.observe import parse_bind
from tests.dockerfile import tags
from tests.unit.deploy.test_rendering import cameras, one


def test_its_pod_reads_one_camera(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("rtsp://me:hidden@10.0.0.7/stream1\n")
    deployment = one(cameras(), "Deployment", "camera-door")["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value", "default") for each in container["env"]}
    source = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}["source"]
    settings = read({**told, "SOURCE_URL_FILE": told["SOURCE_URL_FILE"].replace(source, str(tmp_path))})
    (camera,) = settings.cameras
    assert (camera.name, camera.address.shown) == ("door", "rtsp://***@10.0.0.7/stream1")
    assert (camera.fps, camera.max_width, settings.namespace) == (10.0, 1280, "default")
    assert parse_bind(settings.http) == ("", container["ports"][0]["containerPort"])
    assert deployment["strategy"]["type"] == "Recreate", "two readers would publish each frame twice"
    assert container["image"] == tags()["camera"]
