"""Damaged files with a fixed seed: no exception but FedRayError, and no hang."""

from tests.fuzz.inputs import play


def test_damaged_files_are_read_or_refused(tmp_path):
    found = play(tmp_path / "fuzz", inputs=2000, seed=0)
    assert set(found) == {"read", "refused"}, found
    assert found["refused"] > 1000
