"""The description of gRPC's messages is made of the protocol's file, and lives beside other clients' own."""

from __future__ import annotations

import tritonclient.grpc
import tritonclient.grpc.service_pb2

from halimede.serving import generate_descriptor
from halimede.serving.grpc_handlers import InferRequest, message


def test_what_is_checked_in_is_what_the_protocol_says() -> None:
    assert generate_descriptor.DESCRIPTOR.read_text() == generate_descriptor.make()


def test_another_clients_messages_of_the_same_names_are_no_trouble() -> None:
    theirs = tritonclient.grpc.service_pb2.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"1234"])
    theirs.inputs.add(name="x", datatype="FP32", shape=[1])
    ours = InferRequest.FromString(theirs.SerializeToString())
    assert (ours.model_name, ours.id, ours.inputs[0].name, ours.raw_input_contents[0]) == ("m", "7", "x", b"1234")
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


def test_all_that_we_say_is_what_others_read() -> None:
    contents = {
        "bool_contents": [True], "int_contents": [-1], "int64_contents": [-2], "uint_contents": [3],
        "uint64_contents": [4], "fp32_contents": [0.5], "fp64_contents": [0.25], "bytes_contents": [b"b"],
    }  # fmt: skip
    ours = message("ModelInferResponse")(model_name="m", model_version="2", id="7")
    ours.outputs.add(name="y", datatype="FP32", shape=[2], contents=contents)
    ours.parameters["a"].double_param = 1.5
    theirs = tritonclient.grpc.service_pb2.ModelInferResponse.FromString(ours.SerializeToString())
    assert theirs.SerializeToString(deterministic=True) == ours.SerializeToString(deterministic=True)
    assert str(theirs) == str(ours), "something is unknown to them"
    assert (theirs.outputs[0].contents.fp64_contents[0], theirs.parameters["a"].double_param) == (0.25, 1.5)
