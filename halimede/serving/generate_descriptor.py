"""Makes ``descriptor.py`` of ``open_inference.proto``, and checks that it is up to date; ``make contract`` runs it.

gRPC messages are built from this description in a separate pool of types. Generated classes would register their names
with the common pool, which accepts each name once: no other client or server of the protocol could be in the process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

#: the folder of the protocol file and of the generated module
HERE = Path(__file__).parent
#: the source and the result
PROTO, DESCRIPTOR = HERE / "open_inference.proto", HERE / "descriptor.py"
#: first line of the result
DOCSTRING = '"""Made from open_inference.proto by generate_descriptor.py: change that, then run `make contract`."""'


def make() -> str:
    """Return the text of ``descriptor.py``.

    It needs grpcio-tools, a package that is only used here. Raises SystemExit if the protocol cannot be read.
    """
    from google.protobuf import descriptor_pb2  # noqa: PLC0415
    from grpc_tools import protoc  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        if protoc.main(["protoc", f"-I{HERE}", f"--descriptor_set_out={out}", str(PROTO)]):
            raise SystemExit(f"{PROTO.name} cannot be read: the lines above say why")
        descriptors = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    (file,) = descriptors.file
    data = file.SerializeToString(deterministic=True).hex()
    lines = [f'    "{data[at : at + 112]}"' for at in range(0, len(data), 112)]  # lines of 118 characters
    return "\n".join([DOCSTRING, "", "FILE = bytes.fromhex(", *lines, ")", ""])


def main() -> int:
    """Write or check ``descriptor.py``, as the command line asks; return the exit code: 1 if it is not current."""
    summary = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m halimede.serving.generate_descriptor", description=summary)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write descriptor.py again")
    action.add_argument("--check", action="store_true", help="exit 1 if it is not current")
    arguments = parser.parse_args()
    text = make()
    if arguments.write:
        DESCRIPTOR.write_text(text)
    elif not DESCRIPTOR.exists() or DESCRIPTOR.read_text() != text:
        print(f"{DESCRIPTOR.name} is not what {PROTO.name} says: run make contract", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
