"""What MLServer is given to serve the same ONNX file: the smallest runtime that there can be, in its own Python."""

from __future__ import annotations

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxRuntime(MLModel):
    """One session, one thread, all inputs and outputs as they are."""

    async def load(self) -> bool:
        """Open the file."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        uri = self.settings.parameters.uri
        self._session = onnxruntime.InferenceSession(uri, options, providers=["CPUExecutionProvider"])
        self._outputs = [output.name for output in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer."""
        feeds = {given.name: NumpyCodec.decode_input(given) for given in payload.inputs}
        answers = self._session.run(self._outputs, feeds)
        outputs = [NumpyCodec.encode_output(name, a) for name, a in zip(self._outputs, answers, strict=True)]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)
