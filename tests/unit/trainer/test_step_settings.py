"""The settings of the benchmarks are the defaults of the product."""

from bench.step_settings import SETTINGS
from rstar2_train.api.stages import GRPOSettings


def test_settings_of_benchmarks_are_the_defaults() -> None:
    """Each field has the value of GRPOSettings."""
    defaults = GRPOSettings()
    assert (SETTINGS.temperature, SETTINGS.correction_cap) == (defaults.temperature, defaults.correction_cap)
    assert SETTINGS.reference_kl is defaults.reference_kl is None
    objective = vars(SETTINGS.objective)
    assert objective == {name: getattr(defaults.objective, name) for name in objective}
    correction = defaults.importance_correction
    assert SETTINGS.importance_correction.max_sequence_gap == correction.max_sequence_gap
    assert SETTINGS.importance_correction.drops_sequences == correction.drops_sequences
