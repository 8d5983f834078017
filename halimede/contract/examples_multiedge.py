"""The examples of multi-edge inference in topics.md: cameras ``door`` and ``yard`` see one object after the other."""

from __future__ import annotations

from typing import Any

from halimede import messages as m
from halimede import topics as t

FRAME_ID = bytes.fromhex("0d51c07f9a1e4b1f8d52aef3c4b1d2e6")
IDENTITY = "8f2b1c7d90e4a35f"
NOON_S = 1_795_262_400.0
DOOR, YARD = "lobby-door-edge0", "lobby-yard-edge1"
BOX = m.Box(x1=40.0, y1=22.0, x2=68.0, y2=51.0, score=0.93, label="person")
#: four features as float16, little endian: (0.5, 0.5, 0.5, 0.5)
FEATURES = bytes.fromhex("0038003800380038")
SIGHTING = m.Sighting(
    camera="door", time=NOON_S, box=BOX, frame=FRAME_ID.hex(), similarity=0.91, worker=DOOR, node="edge0"
)
TRACK = m.Track(identity=IDENTITY, sighting=SIGHTING, count=12, cameras=["door", "yard"], embedding=FEATURES)

EXAMPLES: dict[str, Any] = {
    t.PEER.id: m.Peer(
        rank=1,
        life="5b0c",
        node="edge0",
        intake="intake.default.lobby-door-edge0.5e0c7f19",
        holds=["intake.default.lobby-gate-edge2.90d1a3b2"],
        share=m.Load(credits=14, service_ms=8.5, queued=2),
        join=m.Load(credits=64, service_ms=0.2),
    ),
    t.HOP_REQUEST.id: m.Frame(
        id=FRAME_ID,
        service="lobby",
        worker=DOOR,
        camera="door",
        sequence=41,
        captured_ns=1_795_262_400_000_000_000,
        deadline_ms=1987.5,
        encoding="raw",
        dtype="uint8",
        shape=[1],
        edge=m.Prediction(boxes=[BOX], embeddings=FEATURES),
        data=memoryview(b"\0"),
    ),
    t.HOP_REPLY.id: m.Reply(id=FRAME_ID, worker=YARD, prediction=m.Prediction(boxes=[BOX], value=[IDENTITY])),
    t.MULTI_RESULT.id: m.Result(
        id=FRAME_ID.hex(),
        service="lobby",
        camera="door",
        sequence=41,
        captured_ns=1_795_262_400_000_000_000,
        by="joint",
        prediction=m.Prediction(boxes=[BOX], value=[IDENTITY]),
        worker=YARD,
        node="edge0",
        total_ms=14.2,
        edge_ms=8.1,
        offload_ms=4.4,
    ),
    t.TRACK.id: TRACK,
    t.GALLERY.id: TRACK,
    t.FUSED.id: m.Fused(
        instant=NOON_S,
        rule="product",
        label="5",
        score=0.97,
        sources=[
            m.FusedFrom(camera="door", worker=DOOR, label="3", score=0.52, offset_ms=-4.0),
            m.FusedFrom(camera="yard", worker=YARD, label="5", score=0.88, offset_ms=4.0),
        ],
        missing=["gate"],
    ),
    t.IDENTITY_QUERY.id: m.IdentityQuery(identity=IDENTITY, limit=20),
    t.IDENTITY_ANSWER.id: m.IdentityAnswer(
        worker=YARD,
        identities=[
            m.Identity(
                identity=IDENTITY,
                count=12,
                cameras=["door", "yard"],
                first=NOON_S - 9.5,
                last=NOON_S,
                sightings=[SIGHTING],
            )
        ],
    ),
    t.CAMERA_STATUS.id: m.CameraStatus(
        camera="door",
        state="running",
        source="rtsp://***@10.0.0.7/stream1",
        codec="mjpeg",
        width=640,
        height=480,
        fps=9.9,
        wanted_fps=10.0,
        frames=2041,
        skipped=3,
        last_frame="2026-11-21T12:00:00Z",
        latency_ms=6.5,
        node="edge0",
    ),
}
