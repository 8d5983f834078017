"""What `make demo-federated` claims holds in one process, too."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from examples.federated.simulation import COMPRESSION, DROPPED, JobParameters, JobResult, alone, simulate
from examples.federated.split import MODEL, NODES, digits_of, together, training_parts, unseen, write
from halimede.training.data import read_data


@cache
def federated() -> JobResult:
    return simulate(training_parts(), JobParameters())


@cache
def centralised() -> float:
    return alone(together(training_parts()))


def test_each_node_sees_two_digits_and_nobody_what_is_measured() -> None:
    parts = training_parts()
    assert [set(part.labels) for part in parts] == [set(digits_of(i)) for i in range(len(NODES))]
    measured = {sample.tobytes() for sample in unseen().samples}
    assert sum(sample.tobytes() in measured for part in parts for sample in part.samples) == 0


def test_a_node_reads_from_its_file_what_the_baselines_train_on(tmp_path) -> None:
    for file, part in zip(write(tmp_path).values(), training_parts(), strict=True):
        read = read_data(file, MODEL)
        assert read.train.samples.tobytes() == part.samples.tobytes()
        assert np.array_equal(read.train.labels, part.labels)


def test_federated_training_is_as_good_as_all_digits_in_one_place() -> None:
    assert federated().accuracy[-1] >= centralised() - 0.02


def test_it_is_far_better_than_any_node_alone() -> None:
    assert federated().accuracy[-1] >= max(map(alone, training_parts())) + 0.15


def test_two_of_five_nodes_that_drop_out_of_each_round_cost_little() -> None:
    assert simulate(training_parts(), JobParameters(dropped=DROPPED)).accuracy[-1] >= centralised() - 0.04


def test_compression_saves_three_quarters_of_the_bytes_and_hardly_any_accuracy() -> None:
    found = simulate(training_parts(), JobParameters(compression=COMPRESSION))
    assert (found.update_bytes + found.weights_bytes) * 5 <= federated().update_bytes + federated().weights_bytes
    assert found.accuracy[-1] >= federated().accuracy[-1] - 0.01


def test_the_same_job_has_the_same_result() -> None:
    short = JobParameters(rounds=3, compression=COMPRESSION)
    assert simulate(training_parts(), short) == simulate(training_parts(), short)


@pytest.mark.parametrize("aggregation", ["FedAvg", "FedProx"])
def test_the_means_of_updates_learn_it_more_slowly(aggregation: str) -> None:
    found = simulate(training_parts(), JobParameters(aggregation=aggregation, parameters={}))
    assert 0.85 < found.accuracy[-1] < federated().accuracy[-1]
