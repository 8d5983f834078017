"""What a camera sends is read whole, or refused with a reason that shows none of it."""

from __future__ import annotations

import contextlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.codec import MAX_BYTES
from halimede.errors import DecodeError, InvalidFieldError
from halimede.frames import decode, encode_image, new_frame, new_id, open_payload, pack
from halimede.messages import Prediction


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_a_bare_picture_becomes_a_frame_with_a_new_id_and_uncopied_data(encoding: str) -> None:
    payload = encode_image(np.zeros((3, 4, 3), np.uint8), encoding)
    first, second = open_payload(payload, "cam0"), open_payload(payload, "cam0")
    assert (first.encoding, first.camera, len(first.id)) == (encoding, "cam0", 16)
    assert first.id != second.id
    assert first.data.obj is payload
    assert decode(first).shape == (3, 4, 3)


def test_our_own_frame_keeps_its_id_and_sequence_and_takes_the_topics_camera() -> None:
    frame = new_frame(np.zeros((2, 2), np.uint8), camera="forged", sequence=7)
    frame.edge = Prediction(label="forged")
    opened = open_payload(pack(frame), "cam1")
    assert (opened.id, opened.sequence, opened.camera, opened.edge) == (frame.id, 7, "cam1", None)


def test_the_data_of_our_own_frame_is_a_view_of_the_message() -> None:
    payload = pack(new_frame(np.arange(12, dtype=np.float32).reshape(3, 4)))
    assert open_payload(payload, "cam0").data.obj is payload


def test_a_plain_msgpack_reader_reads_our_frame() -> None:
    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    frame = new_frame(image, camera="cam0", sequence=3)
    read = msgpack.unpackb(pack(frame))
    assert list(read)[-1] == "data"
    assert (read["v"], read["id"], read["encoding"]) == (1, frame.id, "raw")
    assert np.array_equal(np.frombuffer(read["data"], read["dtype"]).reshape(read["shape"]), image)


def test_a_frame_written_by_plain_msgpack_is_read() -> None:
    body = {"v": 1, "id": new_id(), "encoding": "raw", "dtype": "uint8", "shape": [2, 2], "data": b"\1\2\3\4"}
    assert decode(open_payload(msgpack.packb(body), "cam0")).tolist() == [[1, 2], [3, 4]]


RAW = {"v": 1, "id": bytes(16), "encoding": "raw", "data": b"x"}


@pytest.mark.parametrize("payload", [b"", b"\xff\xd8", msgpack.packb({"v": 1}), msgpack.packb(RAW | {"data": b""})])
def test_what_is_no_frame_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        open_payload(payload, "cam0")


@pytest.mark.parametrize("start", [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"\x88"])
def test_an_oversized_message_is_refused_by_its_size_alone(start: bytes) -> None:
    with pytest.raises(DecodeError, match="over the limit"):
        open_payload(start + bytes(MAX_BYTES), "cam0")


def test_a_frame_that_its_encoding_cannot_carry_is_not_made() -> None:
    with pytest.raises(InvalidFieldError, match="uint8"):
        new_frame(np.zeros((4, 4), np.float32), encoding="png")
    with pytest.raises(InvalidFieldError, match="dtype"):
        new_frame(np.array([object()]))


@given(st.binary(max_size=200))
def test_any_bytes_give_a_frame_or_a_decode_error(payload: bytes) -> None:
    with contextlib.suppress(DecodeError):
        decode(open_payload(payload, "cam0"))


def test_what_is_no_picture_and_no_frame_is_told_so() -> None:
    for payload in (b"GIF89a...", b"text", b"\xc0", b"[]"):
        with pytest.raises(DecodeError, match="neither a JPEG, nor a PNG, nor a frame of ours"):
            open_payload(payload, "cam0")
