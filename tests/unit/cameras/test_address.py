"""What an address of a camera means, and that nothing shows its secrets."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.cameras.address import SourceKind, name_of, parse
from halimede.errors import InvalidFieldError

SECRET = "S3cr3t@/p?ss#word"


@pytest.mark.parametrize(
    ("text", "kind", "target", "shown"),
    [
        ("rtsp://10.0.0.7/live", SourceKind.RTSP, "rtsp://10.0.0.7/live", "rtsp://10.0.0.7/live"),
        ("rtsps://a:b@cam:322/x", SourceKind.RTSP, "rtsps://a:b@cam:322/x", "rtsps://***@cam:322/x"),
        ("http://cam/video?key=abc", SourceKind.HTTP, "http://cam/video?key=abc", "http://cam/video?***"),
        ("/dev/video0", SourceKind.DEVICE, "/dev/video0", "/dev/video0"),
        ("v4l2:///dev/video2", SourceKind.DEVICE, "/dev/video2", "/dev/video2"),
        ("/data/a b.mp4", SourceKind.FILE, "/data/a b.mp4", "/data/a b.mp4"),
        ("file:///data/a%20b.mp4", SourceKind.FILE, "/data/a b.mp4", "/data/a b.mp4"),
    ],
)
def test_what_it_means(text: str, kind: SourceKind, target: str, shown: str) -> None:
    address = parse(text)
    assert (address.kind, address.target, address.shown) == (kind, target, shown)
    assert address.live is (kind is not SourceKind.FILE)


@pytest.mark.parametrize(
    "text",
    ["", "ftp://h/x", "rtsp://", "rtsp:///x", "rtsp://h:99999/x", "http://[/x", "file://host/x", "file://x",
     "rtsp://h/a b", "rtsp://h/\n", "rtsp://h/\0", "concat:a|b://x", "rtsp://h/x#No Name", "x" * 5000],
)  # fmt: skip
def test_what_it_cannot_be(text: str) -> None:
    with pytest.raises(InvalidFieldError):
        parse(text)


def test_a_user_is_put_into_an_address_that_has_none() -> None:
    targets = {"rtsp://cam/x": f"rtsp://me:{quote(SECRET, safe='')}@cam/x"}
    for text in ("rtsp://cam/x", "rtsp://a:b@cam/x", "/data"):
        assert parse(text, username="me", password=SECRET).target == targets.get(text, text)


def test_a_path_of_a_node_stays_below_its_prefix() -> None:
    assert parse("/data/a.mp4", prefix="/home/data").target == "/home/data/data/a.mp4"


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=5, max_size=40))
def test_no_text_about_it_shows_its_secrets(secret: str) -> None:
    address = parse("rtsp://10.0.0.7/live", username="me", password=secret)
    quoted = quote(secret, safe="")
    said = address.redact(f"cannot open {address.target}: user me with {secret} or {quoted} is refused")
    assert secret not in said.replace("***", "")
    assert quoted not in said
    assert secret not in repr(address) or secret in "Address(kind=<Kind.RTSP: 'rtsp'>, shown='rtsp://***@10.0.0.7/live'"


@pytest.mark.parametrize(
    ("text", "name"),
    [("rtsp://me:pw@10.0.0.7:554/Stream_1", "10-0-0-7-554-stream-1"), ("/data/door.mp4", "data-door-mp4"),
     ("rtsp://cam/x#door", "door"), ("/dev/video0", "dev-video0")],
)  # fmt: skip
def test_a_camera_that_nobody_has_named(text: str, name: str) -> None:
    assert name_of(parse(text)) == name
