"""Temperatures and weights are found again where they are known, and files that hold nothing are refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from halimede.calibration.temperature import calibration_error, temperature
from halimede.multiedge.fusion.calibration import Labelled, LabelledError, accuracy, fit, fuse, load, main


def scene(count: int = 1500, classes: int = 4, noises: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Labelled:
    """Sources whose probabilities are true ones: Bayes' rule on a signal with known noise."""
    random = np.random.default_rng(3)
    truth = random.integers(0, classes, count)
    rows = []
    for noise in noises:
        signal = np.eye(classes)[truth] + random.normal(0, noise, (count, classes))
        logits = signal / noise**2
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows.append(powers / powers.sum(axis=1, keepdims=True))
    cameras = tuple(f"cam{i}" for i in range(len(noises)))
    return Labelled(np.stack(rows, axis=1), truth, cameras, tuple("abcd"[:classes]))


def surer(data: Labelled, camera: int, power: float) -> Labelled:
    rows = data.rows.copy()
    rows[:, camera] = rows[:, camera] ** power
    return Labelled(rows / rows.sum(axis=2, keepdims=True), data.truth, data.cameras, data.labels)


def test_a_source_that_is_too_sure_gets_the_temperature_that_makes_it_true():
    data = surer(scene(), 1, 4.0)
    assert calibration_error(*data.of(1)) > 0.15
    fitted = fit(data, "product")
    assert fitted.temperatures == pytest.approx([1, 4, 1], rel=0.15)
    assert fitted.weights == pytest.approx([1, 1, 1], abs=0.15)


def test_sources_that_say_the_same_share_one_weight():
    data = scene(noises=(1.0, 1.0))
    twins = Labelled(data.rows[:, [0, 0, 1]], data.truth, ("a", "b", "c"), data.labels)
    weights = fit(twins, "product").weights
    assert weights[0] + weights[1] == pytest.approx(weights[2], abs=0.2)


def test_a_source_that_sees_nothing_has_hardly_a_vote():
    weights = fit(scene(noises=(0.7, 0.7, 40.0)), "vote").weights
    assert weights[2] < 0.25 * weights[:2].min()


def test_fitting_pays(tmp_path):
    data = surer(scene(noises=(0.6, 0.6, 3.0)), 2, 40.0)
    plain, fitted = fuse(data, "product", None), fuse(data, "product", fit(data, "product"))
    assert accuracy(fitted, data.truth) > accuracy(plain, data.truth) + 0.1


def test_a_camera_that_has_nothing_says_nothing():
    data = scene(200)
    data.rows[:, 2] = np.nan
    data.rows[::2, 1] = np.nan
    fitted = fit(data, "product")
    assert fitted.temperatures[2] == 1
    assert accuracy(fuse(data, "product", fitted), data.truth) > accuracy(data.of(0)[0].argmax(axis=1), data.truth)
    assert temperature(*data.of(2)) == 1


def test_a_file_of_arrays_becomes_parameters(tmp_path, capsys):
    data = scene(200)
    np.savez(tmp_path / "a.npz", probabilities=data.rows, truth=np.array(data.labels)[data.truth],
             labels=data.labels, cameras=data.cameras)  # fmt: skip
    assert main([str(tmp_path / "a.npz"), "--json", "--rule", "vote"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["parameters"]["rule"] == "vote"
    assert set(said["parameters"]) == {"rule", *(f"{k}.cam{i}" for k in ("temperature", "weight") for i in range(3))}
    assert said["fused"]["calibrated"]["product"] > max(c["accuracy"] for c in said["cameras"].values())


def test_indexes_are_labels_where_there_are_no_names(tmp_path):
    data = scene(30)
    np.savez(tmp_path / "a.npz", probabilities=data.rows * 7, truth=data.truth)
    read = load(tmp_path / "a.npz")
    assert (read.labels, read.cameras) == (("0", "1", "2", "3"), ("cam0", "cam1", "cam2"))
    assert np.allclose(read.rows, data.rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "its first line must be instant,camera,truth"),
        ("a.csv", "instant,camera,truth,a,b\n", "holds no findings"),
        ("a.csv", "instant,camera,truth,a,b\n1,c,a,0.5,x\n", "x"),
        ("a.csv", "instant,camera,truth,a,b\n1,c,d,0.5,0.5\n", "truth d"),
        ("a.csv", "instant,camera,truth,a,b\n1,c,a,1,0\n1,d,b,1,0\n", "not the only truth"),
        ("a.csv", "instant,camera,truth,a,b\n1,c,a,0,0\n", "all 0"),
        ("a.csv", "instant,camera,truth,a,b\n1,c,a,-1,2\n", "negative"),
        ("a.csv", "instant,camera,truth,a,b\n1,c,a,1\n", "holds no findings"),
        ("a.csv", "instant,camera,truth,a,b\n1,c,a,1,0\n", "too few"),
        ("a.npz", "PK", "a.npz"),
        ("b.csv", None, "No such file"),
        ("a.npz", {"truth": [0]}, "no array probabilities"),
        ("a.npz", {"truth": [0], "probabilities": [[1.0]]}, "[instants, cameras, classes]"),
        ("a.npz", {"truth": [5], "probabilities": [[[0.5, 0.5]]]}, "truth 5"),
        ("a.npz", {"truth": [0], "probabilities": [[[0.5, 0.5]]], "labels": ["a"]}, "as many as"),
        ("a.npz", {"truth": np.array([object()]), "probabilities": [[[0.5, 0.5]]]}, "allow_pickle"),
    ],
)
def test_a_file_that_holds_no_findings_is_refused_in_one_line(tmp_path, capsys, name, content, message):
    if isinstance(content, dict):
        np.savez(tmp_path / name, **content)
    elif content is not None:
        (tmp_path / name).write_text(content)
    assert main([str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_line_of_truths_without_a_number_is_refused(tmp_path):
    results, truth = tmp_path / "results.json", tmp_path / "truth.csv"
    results.write_text("")
    truth.write_text("camera,sequence,truth\nnorth\n")
    with pytest.raises(LabelledError, match="invalid literal for int"):
        load(results, truth)
