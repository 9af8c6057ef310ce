"""What calibrated predictions promise."""

from __future__ import annotations

from random import Random

from gpuq.learn.calibration import Calibration


def test_exact_predictions_are_believed() -> None:
    """After many jobs that ran as predicted, the time left is about the prediction minus what is done."""
    calibration = Calibration()
    random = Random(1)
    for _ in range(2000):
        run_s = 10 ** random.uniform(2, 5)
        calibration.add(run_s, run_s)
    assert 2000 < calibration.effective_left_s(3600.0, 0.0) < 6000
    assert calibration.effective_left_s(36000.0, 30000.0) < calibration.effective_left_s(36000.0, 0.0)


def test_predictions_ten_times_too_long_are_corrected() -> None:
    """When every job runs a tenth of its prediction, the next one is expected to do so as well."""
    calibration = Calibration()
    random = Random(2)
    for _ in range(2000):
        run_s = 10 ** random.uniform(2, 4)
        calibration.add(10 * run_s, run_s)
    assert 600 < calibration.effective_left_s(10_000.0, 0.0) < 1700


def test_a_job_that_outlives_everything_is_expected_to_go_on() -> None:
    """The time left is never 0, and grows with the time done when all earlier jobs were shorter."""
    calibration = Calibration()
    for _ in range(500):
        calibration.add(100.0, 100.0)
    early_s, late_s = calibration.effective_left_s(100.0, 1e5), calibration.effective_left_s(100.0, 1e7)
    assert 0 < early_s < late_s


def test_more_gpu_hours_predicted_is_more_left() -> None:
    """Without any experience, a longer prediction means a longer time left."""
    calibration = Calibration()
    found = [calibration.effective_left_s(predicted_s, 0.0) for predicted_s in (60.0, 600.0, 6000.0, 60000.0)]
    assert found == sorted(found)
