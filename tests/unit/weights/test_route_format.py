"""The shape of the experts that a mixture chose, by its config.json."""

from rstar2_train.weights.route_format import RouteFormat


def test_route_format_has_the_defaults_of_its_class() -> None:
    """A config.json without the numbers of experts is that of a mixture too: its experts are replayed."""
    assert RouteFormat.of({"model_type": "olmoe", "num_hidden_layers": 2}) == RouteFormat(2, 8, 1)
    assert RouteFormat.of({"model_type": "mixtral", "num_hidden_layers": 3, "num_local_experts": 300}) == RouteFormat(
        3, 2, 2
    )
    assert RouteFormat.of({"model_type": "llama", "num_hidden_layers": 2}) is None
