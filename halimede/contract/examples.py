"""One realistic body for every topic of the contract, as typed objects: for topics.md and the JSON schemas.

``EXAMPLES`` has the bodies by topic id. Most show one case: the service ``digits`` runs on ``edge0`` and ``cloud0``,
and camera ``cam0`` sends a frame whose two best classes are close, so the edge requests the cloud. The examples of
multi-edge inference show another case: cameras of the service ``lobby`` see one person.
"""

from __future__ import annotations

import hashlib
from typing import Any

from halimede import messages as m
from halimede import topics as t
from halimede.topic import Address, Topic

#: values of the names in templates
NAMES = {
    "node": "edge0",
    "ns": "default",
    "plural": "jointinferenceservices",
    "name": "digits",
    "worker": "digits-edge-edge0",
    "camera": "cam0",
    "service": "digits",
    "client": "cli-4f1d2a",
    "asker": "lc.edge0",
    "source": "gm",
    "hop": "join",
    "job": "digits",
    "trainer": "digits-trainer-edge0",
}
#: topics with the cloud worker's name
CLOUD_TOPICS = frozenset({t.REQUEST_TO.id, t.LOAD.id})
#: topics between an operator and a source
OPERATOR_TOPICS = frozenset({t.BLOB_ORDER.id, t.BLOB_ANSWER.id})
#: uid of the service, names of its workers, a time, and the id of the frame
UID = "9b2c6a52-6f0e-4f5e-9d0a-0c8f7f3c1a11"
CLOUD = "digits-cloud-cloud0"
EDGE = "digits-edge-edge0"
NOON = "2026-11-21T12:00:00Z"
FRAME_ID = bytes.fromhex("7d3c9a4be0f14c1f8a52c6f0d1e2b3a4")
#: a white 1 x 1 PNG, complete with its checksums
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c63f80f0001010100b138f6140000000049454e44ae426082"
)
#: the file of the blob examples
DIGEST = hashlib.sha256(PNG).hexdigest()
#: the resources, messages and values of the case
SERVICE: m.ResourceBody = {
    "apiVersion": "sedna.io/v1alpha1",
    "kind": "JointInferenceService",
    "metadata": {"name": "digits", "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "7"},
    "spec": {
        "edgeWorker": {
            "model": {"name": "digits-small"},
            "hardExampleMining": {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": "0.19"}]},
            "source": {"cameras": ["cam0"]},
            "deadlineMs": 2000,
            "template": {"spec": {"nodeName": "edge0", "containers": [{"name": "edge", "image": "halimede/worker"}]}},
        },
        "cloudWorker": {
            "model": {"name": "digits-big"},
            "template": {"spec": {"nodeName": "cloud0", "containers": [{"name": "cloud", "image": "halimede/worker"}]}},
        },
    },
}
MODEL: m.ResourceBody = {
    "apiVersion": "sedna.io/v1alpha1",
    "kind": "Model",
    "metadata": {"name": "digits-small", "namespace": "default"},
    "spec": {"url": "/models/small.onnx", "format": "onnx"},
}
COUNTS = m.TaskInfo(
    inference_number=899,
    hard_example_number=171,
    upload_cloud_ratio=0.19,
    edge_inference_number=728,
    cloud_inference_number=171,
    start_time=NOON,
    current_time=NOON,
    update_time=NOON,
    edge_latency=m.Histogram(buckets={"-9": 640, "-4": 259}),
)
PROBABILITIES = [0.02, 0.01, 0.02, 0.48, 0.0, 0.41, 0.0, 0.02, 0.03, 0.01]
EDGE_PREDICTION = m.Prediction(label="3", score=0.48, probabilities=PROBABILITIES)
CLOUD_PREDICTION = m.Prediction(label="5", score=0.97)
FRAME = m.Frame(
    id=FRAME_ID,
    service="digits",
    worker=EDGE,
    camera="cam0",
    sequence=41,
    deadline_ms=1987.5,
    encoding="png",
    edge=m.Prediction(label="3", score=0.48),
    data=memoryview(PNG),
)
NODE = m.NodeInfo(
    name="edge0",
    online=True,
    epoch=3,
    version="0.1.0",
    cpus=4,
    memory_bytes=8_589_934_592,
    labels={"node-role.kubernetes.io/edge": ""},
    resources=2,
)
EXAMPLES: dict[str, Any] = {
    t.INSERT.id: SERVICE,
    t.DELETE.id: m.Delete(uid=UID, generation=1),
    t.SYNCED.id: m.Synced(epoch=12, count=2),
    t.NODE_STATUS.id: m.NodeStatus(
        phase="Running",
        status="running",
        output=m.Output(models=[m.ModelOutput(format="onnx", url="file:///models/small.onnx")], task_info=COUNTS),
        uid=UID,
        observed_generation=1,
        workers=[m.WorkerReport(name=EDGE, role="edge", phase="Running", restarts=0)],
    ),
    t.SYNC.id: m.Sync(
        epoch=3,
        gm_epoch=12,
        holds=[m.Held(plural="jointinferenceservices", namespace="default", name="digits", uid=UID, generation=1)],
    ),
    t.PRESENCE.id: m.Presence(
        node="edge0",
        epoch=3,
        online=True,
        version="0.1.0",
        cpus=4,
        memory_bytes=8_589_934_592,
        labels={"node-role.kubernetes.io/edge": ""},
        store="9c02b7714e5fa3d8",
    ),
    t.WORKER_INFO.id: m.WorkerInfo(
        name=EDGE, namespace="default", owner_name="digits", owner_uid=UID, role="edge", status="running", period_s=3
    ),
    t.CAMERA_FRAME.id: PNG,
    t.REQUEST.id: FRAME,
    t.REQUEST_TO.id: FRAME,
    t.REPLY.id: m.Reply(id=FRAME_ID, worker=CLOUD, prediction=CLOUD_PREDICTION, queue_ms=0.8, compute_ms=2.4, batch=3),
    t.LOAD.id: m.Load(credits=61, service_ms=0.8),
    t.RESULT.id: m.Result(
        id=FRAME_ID.hex(),
        service="digits",
        camera="cam0",
        sequence=41,
        by="cloud",
        hard=True,
        label="5",
        score=0.97,
        prediction=CLOUD_PREDICTION,
        edge=EDGE_PREDICTION,
        worker=CLOUD,
        node="edge0",
        total_ms=6.1,
        edge_ms=0.4,
        offload_ms=5.2,
    ),
    t.HARD_SAMPLE.id: m.HardSample(
        id=FRAME_ID,
        camera="cam0",
        file="five.png",
        worker=EDGE,
        node="edge0",
        by="cloud",
        edge_label="3",
        edge_score=0.48,
        label="5",
        score=0.97,
        data=PNG,
    ),
    t.OCCUPANCY.id: m.OccupancyEvent(
        id=FRAME_ID.hex(),
        sequence=7,
        type="entered",
        service="digits",
        camera="cam0",
        label="person",
        zone="door",
        count=1,
        before=0,
        time_ns=1_767_225_600_000_000_000,
        since_ns=1_767_225_600_000_000_000,
        frame=FRAME_ID.hex(),
        score=0.91,
        boxes=[m.Box(0.1, 0.2, 0.3, 0.9, 0.91, "person")],
        present=[
            m.PresentObjects(label="person", count=1, since_ns=1_767_225_600_000_000_000),
            m.PresentObjects(label="person", zone="door", count=1, since_ns=1_767_225_600_000_000_000),
        ],
    ),
    t.STATUS.id: m.StatusDocument(
        api_version="sedna.io/v1alpha1",
        kind="JointInferenceService",
        namespace="default",
        name="digits",
        uid=UID,
        generation=1,
        status=m.Status(
            phase="Running",
            observed_generation=1,
            conditions=[
                m.Condition(
                    type="Running",
                    observed_generation=1,
                    last_heartbeat_time=NOON,
                    last_transition_time=NOON,
                    reason="AllWorkersRun",
                    message="2 workers are running",
                )
            ],
            start_time=NOON,
            active=2,
            metrics=[
                m.Metric(key="inferenceNumber", value="899"),
                m.Metric(key="hardExampleNumber", value="171"),
                m.Metric(key="uploadCloudRatio", value="0.19"),
            ],
            nodes=[
                m.NodeSummary(node="edge0", online=True, phase="Running", workers=1),
                m.NodeSummary(node="cloud0", online=True, phase="Running", workers=1),
            ],
        ),
    ),
    t.GM_PRESENCE.id: m.GmPresence(epoch=12, online=True, version="0.1.0", store="5f1d7a84e2d94f0b"),
    t.API_REQUEST.id: m.ApiRequest(op="apply", object=MODEL),
    t.API_REPLY.id: m.ApiReply(outcome="created", object=MODEL),
    t.LOGS_REQUEST.id: m.LogsRequest(namespace="default", worker=EDGE, offset=-4096),
    t.LOGS_REPLY.id: m.LogsReply(text='{"event": "started", "level": "info"}\n', offset=38),
    t.TRACE_REQUEST.id: m.TraceRequest(id=FRAME_ID.hex()),
    t.TRACE_REPLY.id: m.TraceReply(
        worker=EDGE,
        role="edge",
        namespace="default",
        service="digits",
        node="edge0",
        spans=[m.Span(name="model", start_ns=1_795_262_400_000_000_000, duration_ns=180_000, attributes={"batch": 1})],
        id=FRAME_ID.hex(),
    ),
    t.KEPT_REQUEST.id: m.KeptRequest(service="digits", label="5", limit=100),
    t.KEPT_REPLY.id: m.KeptReply(
        worker=EDGE,
        namespace="default",
        service="digits",
        node="edge0",
        samples=171,
        room=1_400_832,
        entries=[
            m.KeptEntry(
                id=FRAME_ID.hex(),
                number=171,
                kept_ns=1_795_262_400_000_000_000,
                camera="cam0",
                by="cloud",
                edge_label="3",
                label="5",
                image=m.KeptImage(form="png", size=len(PNG), sha256=DIGEST, width=1, height=1),
            )
        ],
        next=171,
    ),
    t.BLOB_REQUEST.id: m.BlobRequest(digest=DIGEST, length=262_144),
    t.BLOB_CHUNK.id: m.BlobChunk(digest=DIGEST, size=len(PNG), data=memoryview(PNG)),
    t.BLOB_QUERY.id: m.BlobQuery(digest=DIGEST),
    t.BLOB_ORDER.id: m.BlobOrder(op="keep", digest=DIGEST, size=len(PNG)),
    t.BLOB_ANSWER.id: m.BlobAnswer(outcome="kept", size=len(PNG)),
    t.TRAINING_ROUND.id: m.TrainingRound(
        job=UID,
        epoch=1,
        number=7,
        state="open",
        source="digits-aggregator-cloud0",
        weights=m.TensorFile(digest=DIGEST, size=2_734),
        change=m.TensorFile(digest=hashlib.sha256(b"change").hexdigest(), size=451),
        base=hashlib.sha256(b"before").hexdigest(),
        specs=[
            m.TensorSpec(name="layer0.weight", dtype="float32", shape=[64, 10]),
            m.TensorSpec(name="layer0.bias", dtype="float32", shape=[10]),
        ],
        invited=["digits-trainer-edge0", "digits-trainer-edge1"],
        received=["digits-trainer-edge1"],
        remaining_ms=48_200.0,
        seed=1207,
        compression=m.Compression(dtype="float16", top_k=0.125),
        metrics={"accuracy": 0.91, "loss": 0.31},
    ),
    t.TRAINER_STATE.id: m.TrainerState(
        job=UID,
        life="5d0f1c",
        samples=288,
        held_out=71,
        epoch=1,
        number=7,
        update=m.TensorFile(digest=DIGEST, size=612),
        metrics={"loss": 0.22},
        evaluation={"accuracy": 0.91, "loss": 0.31},
    ),
    t.TRAINING_REQUEST.id: m.BlobRequest(digest=DIGEST, length=262_144),
    t.TRAINING_CHUNK.id: m.BlobChunk(digest=DIGEST, size=len(PNG), data=memoryview(PNG)),
    t.DEAD_LETTER.id: m.DeadLetter(
        client=CLOUD,
        topic=f"default/sedna/inference/digits/request/{CLOUD}",
        reason="Input data was truncated",
        size=7,
        head="8da17601a26964",
    ),
}
#: the case of the topics of multi-edge inference
LOBBY_FRAME_ID = bytes.fromhex("0d51c07f9a1e4b1f8d52aef3c4b1d2e6")
IDENTITY = "8f2b1c7d90e4a35f"
NOON_S = 1_795_262_400.0
DOOR, YARD = "lobby-door-edge0", "lobby-yard-edge1"
BOX = m.Box(x1=40.0, y1=22.0, x2=68.0, y2=51.0, score=0.93, label="person")
#: four features as float16, little endian: (0.5, 0.5, 0.5, 0.5)
FEATURES = bytes.fromhex("0038003800380038")
SIGHTING = m.Sighting(
    camera="door", time=NOON_S, box=BOX, frame=LOBBY_FRAME_ID.hex(), similarity=0.91, worker=DOOR, node="edge0"
)
TRACK = m.Track(identity=IDENTITY, sighting=SIGHTING, count=12, cameras=["door", "yard"], embedding=FEATURES)
EXAMPLES |= {
    t.EDGE_PEER.id: m.Peer(rank=1, life="5b0c", node="edge0", intake="intake.default.mnist-edge-edge0.5e0c7f19"),
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
        id=LOBBY_FRAME_ID,
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
    t.HOP_REPLY.id: m.Reply(id=LOBBY_FRAME_ID, worker=YARD, prediction=m.Prediction(boxes=[BOX], value=[IDENTITY])),
    t.MULTI_RESULT.id: m.Result(
        id=LOBBY_FRAME_ID.hex(),
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
    **dict.fromkeys(
        (t.CAMERA_STATUS.id, t.NODE_CAMERA_STATUS.id),
        m.CameraStatus(
            camera="cam0",
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
    ),
}


def address(topic: Topic[Any]) -> Address[Any]:
    """Return the address of a topic with example names filled in."""
    names = {field: NAMES[field] for field in topic.fields}
    if topic.id in CLOUD_TOPICS:
        names["worker"] = CLOUD
    if topic.id in OPERATOR_TOPICS:
        names["asker"] = NAMES["client"]
    return topic.at(**names)
