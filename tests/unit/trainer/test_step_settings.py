"""The settings of the benchmarks are the defaults of the product."""

from bench.step_settings import SETTINGS
from rstar2_train.api.stages import GRPOSettings


def test_settings_of_benchmarks_are_the_defaults() -> None:
    """Each field has the value of GRPOSettings."""
    defaults = GRPOSettings()
    names = ("clip_low", "clip_high", "temperature", "correction_cap")
    assert {name: getattr(SETTINGS, name) for name in names} == {name: getattr(defaults, name) for name in names}
    correction = defaults.importance_correction
    assert SETTINGS.importance_correction.max_sequence_gap == correction.max_sequence_gap
    assert SETTINGS.importance_correction.drops_sequences == correction.drops_sequences
