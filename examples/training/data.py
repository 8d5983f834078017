"""The digits of three nodes, each with pictures of all classes that no other node has, in folders named by class.

    python -m examples.training.data build/training

writes ``node0/``, ``node1/`` and ``node2/``: the half of the digits on which the models of examples/digits are trained.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.digits import data

NODES = 3


def write(folder: Path, most: int = 0) -> list[Path]:
    """Write the pictures of each node, ``most`` of each node if that is not 0; return the nodes' folders."""
    split = data.load()
    folders = [folder / f"node{i}" for i in range(NODES)]
    for i, own in enumerate(folders):
        samples = list(zip(split.train_x[i::NODES], split.train_y[i::NODES], strict=True))
        for number, (image, label) in enumerate(samples[: most or None]):
            path = own / str(label) / f"{number:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.to_png(image))
    return folders


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the pictures")
    for written in write(parser.parse_args().folder):
        print(f"{written}: {sum(1 for _ in written.rglob('*.png'))} pictures")
