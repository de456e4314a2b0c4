"""Mixtures of experts: names of the experts, and the replay of the experts that an engine chose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import OPTIMIZER, RanksHere, rank_here, rollout_groups, write_mixture
from safetensors.torch import load_file

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.model_support import MIXTURES
from rstar2_train.trainer import export, self_check
from rstar2_train.trainer.batching import distribute_rows, grpo_updates
from rstar2_train.trainer.model import WRAPPER, Policy, load_policy, trained_shards
from rstar2_train.trainer.model_files import copy_companions
from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.routing import OWN, Routing, routing_of
from rstar2_train.trainer.shard_writer import ShardWriter
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import TokenSequence
from rstar2_train.weights.route_format import RouteFormat
from rstar2_train.weights.shard_file import ShardFile
from tests.support.model_families import FAMILIES, write_family

FORM = RouteFormat(layers=3, experts=2, number_bytes=1)
EXPERTS, DENSE = 5, 1
"""Experts of a layer; the layer without experts."""
LENGTHS = (13, 2, 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixture(tmp_path_factory.mktemp("models") / "mixture")


@pytest.fixture(scope="module")
def rank(folder: Path) -> Iterator[TrainerRank]:
    with rank_here(folder, packed=True) as rank:
        yield rank


def policy_of(folder: Path, rank: TrainerRank, *, checkpointed: bool = True) -> Policy:
    layout = Layout(ranks=1, shards=1, tokens=256, unchecked=0 if checkpointed else 9)
    return load_policy(folder, compute=rank.compute, chunk=16, layout=layout, packed=True, longest=96)


def rows_of_tokens() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 61, (length,), generator=generator) for length in LENGTHS]


def random_experts(seed: int) -> list[np.ndarray]:
    """Return experts for all tokens but the last of each row: any two different ones, also unlikely ones."""
    draw = np.random.default_rng(seed)
    rows = []
    for length in LENGTHS:
        order = draw.permuted(np.tile(np.arange(EXPERTS), (length - 1, FORM.layers, 1)), axis=2)
        rows.append(order[:, :, : FORM.experts].astype(np.uint8))
    return rows


def routing(rows: list[np.ndarray], *, packed: bool = True) -> Routing:
    ids = torch.zeros((1, sum(LENGTHS)) if packed else (len(LENGTHS), max(LENGTHS)))
    made = routing_of([FORM.encode(row) for row in rows], FORM, ids, LENGTHS if packed else None)
    made.used = {}
    return made


def scores(policy: Policy, replay: Routing | None) -> torch.Tensor:
    """Return the log-probability of each token after the first of each row, with a gradient."""
    rows = rows_of_tokens()
    starts = np.cumsum([0, *LENGTHS[:-1]])
    positions = np.concatenate(
        [np.arange(start, start + length - 1) for start, length in zip(starts, LENGTHS, strict=True)]
    )
    values, _ = policy(
        ids=torch.cat(rows)[None],
        positions=torch.from_numpy(positions),
        targets=torch.cat([row[1:] for row in rows]),
        lengths=LENGTHS,
        routing=replay,
    )
    if not torch.is_grad_enabled():
        policy.reshard()  # type: ignore[operator]
    return values


def test_replay_is_exact_also_in_recomputation(folder: Path, rank: TrainerRank) -> None:
    """Each layer uses the given experts for each token, again when it is recomputed; the last tokens have their own."""
    policy, given = policy_of(folder, rank), routing(random_experts(0))
    scores(policy, given).sum().backward()
    assert given.used is not None
    for layer in (0, 2):
        computed, recomputed = given.used[layer]
        assert torch.equal(computed, recomputed)
        known = given.chosen[layer, :, 0] != OWN
        assert known.sum() == sum(LENGTHS) - len(LENGTHS)
        assert torch.equal(computed[known], given.chosen[layer][known].long())
    assert DENSE not in given.used
    share = sum(map(int, given.differing.values())) / sum(map(int, given.compared.values()))
    assert 0.3 < share < 0.9  # random experts are seldom the router's


@pytest.mark.parametrize("family", [name for name, config in FAMILIES.items() if config().model_type in MIXTURES])
def test_replay_has_the_values_and_gradients_of_the_model(
    family: str, rank: TrainerRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of transformers' own forward pass with the same experts; the routers have a gradient."""
    rows, experts = rows_of_tokens(), random_experts(1)
    model = write_family(family, tmp_path)
    normalised = getattr(model.config, "norm_topk_prob", True)
    routers = {name: part for name, part in model.named_modules() if type(part).__name__.endswith("TopKRouter")}
    present: dict[str, np.ndarray] = {}
    for name, router in routers.items():

        def replaced(
            hidden: torch.Tensor, router: Any = router, layer: int = int(name.split(".")[2])
        ) -> tuple[torch.Tensor, ...]:
            logits = torch.nn.functional.linear(hidden, router.weight, getattr(router, "bias", None))
            probabilities = logits.softmax(dim=-1)
            own = probabilities.topk(FORM.experts).indices
            chosen = torch.cat([torch.from_numpy(present["rows"][:, layer]).long(), own[-1:]])
            weights = probabilities.gather(1, chosen)
            weights = weights / weights.sum(dim=-1, keepdim=True) if normalised else weights
            return (chosen, weights, logits) if model.config.model_type == "granitemoe" else (logits, weights, chosen)

        monkeypatch.setattr(router, "forward", replaced)
    expected = []
    for row, present["rows"] in zip(rows, experts, strict=True):
        expected.append(self_check.row_logprobs(model(row[None]).logits[0], row))
    torch.cat(expected).sum().backward()
    policy = policy_of(tmp_path, rank)
    actual = scores(policy, routing(experts))
    torch.testing.assert_close(actual, torch.cat(expected), rtol=1e-5, atol=1e-5)
    actual.sum().backward()
    shards = {name.replace(WRAPPER, "").removeprefix("model."): shard for name, shard in policy.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(shards[name].grad.full_tensor(), parameter.grad, rtol=1e-4, atol=1e-5)
    for router in routers:
        assert shards[f"{router}.weight"].grad.full_tensor().abs().max() > 1e-4


def test_replay_padded_equals_packed(folder: Path, rank: TrainerRank) -> None:
    """Padding has no experts of the engine."""
    policy, experts = policy_of(folder, rank), random_experts(2)
    rows, width = rows_of_tokens(), max(LENGTHS)
    padded = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])
    starts = [number * width for number in range(len(rows))]
    with torch.no_grad():
        packed = scores(policy, routing(experts))
        values, _ = policy(
            ids=padded,
            positions=torch.cat([torch.arange(s, s + len(row) - 1) for s, row in zip(starts, rows, strict=True)]),
            targets=torch.cat([row[1:] for row in rows]),
            routing=routing(experts, packed=False),
        )
    torch.testing.assert_close(values, packed, rtol=1e-5, atol=1e-5)


def own_experts(policy: Policy) -> list[np.ndarray]:
    """Return the experts that the policy chooses itself, as an engine with its weights does."""
    none = [np.zeros((0, FORM.layers, FORM.experts), np.uint8)] * len(LENGTHS)
    recorded = routing(none)
    with torch.no_grad():
        scores(policy, recorded)
    assert recorded.used is not None
    whole = np.zeros((sum(LENGTHS), FORM.layers, FORM.experts), np.uint8)
    for layer, (experts, *_) in recorded.used.items():
        whole[:, layer] = experts.numpy()
    return [row[:-1] for row in np.split(whole, np.cumsum(LENGTHS)[:-1])]


def test_replay_lowers_the_divergence_after_a_step(folder: Path, rank: TrainerRank) -> None:
    """With routers that differ as after a step, KL(engine || trainer) with replay is at most a third of the other."""
    policy = policy_of(folder, rank)
    experts = own_experts(policy)
    with torch.no_grad():
        engine = scores(policy, None)
        assert torch.equal(scores(policy, routing(experts)), engine)
        generator = torch.Generator().manual_seed(4)
        for name, shard in trained_shards(policy).items():
            if name.endswith("mlp.gate.weight"):
                local = shard.to_local()
                local += 0.02 * torch.randn(local.shape, generator=generator)
        gaps = [scores(policy, replay) - engine for replay in (routing(experts), None)]
    replayed, own = (float((torch.expm1(gap) - gap).mean()) for gap in gaps)
    assert own > 1e-5
    assert replayed <= own / 3


def with_routes(groups: list[list[TokenSequence]], *, short: int = 0) -> list[list[TokenSequence]]:
    """Give random experts to sequences, to all tokens but the last, and to `short` tokens less."""
    draw = np.random.default_rng(5)

    def routed(sequence: TokenSequence) -> TokenSequence:
        count = len(sequence.ids) - 1 - short
        order = draw.permuted(np.tile(np.arange(EXPERTS), (count, FORM.layers, 1)), axis=2)
        return replace(sequence, routes=FORM.encode(order[:, :, : FORM.experts]))

    return [[routed(sequence) for sequence in group] for group in groups]


def test_step_reports_the_replay_and_refuses_incomplete_experts(folder: Path, rank: TrainerRank) -> None:
    """A step has the share of other choices, and the divergence with and, now and then, without replay."""
    group = TrainerGroup(ranks=1, config=rank.config, start_ranks=lambda **_: RanksHere(rank=rank))  # type: ignore
    group.load(folder, optimizer=OPTIMIZER)
    rollouts = rollout_groups(2, 4)
    for broken in (rollouts, with_routes(rollouts, short=1)):
        with pytest.raises(StageFailed, match=r"lacks the experts of .* tokens"):
            group.grpo_step(broken, lr=1e-3, settings=GRPOSettings(), seed=0)
    rank.steps = 0
    first, second = (
        group.grpo_step(with_routes(rollouts), lr=1e-3, settings=GRPOSettings(updates_per_step=2), seed=0)
        for _ in range(2)
    )
    own = group.grpo_step(rollouts, lr=1e-3, settings=GRPOSettings(router_replay=False), seed=0)
    assert 0.3 < first["experts_changed_ratio"] < 0.9
    assert first["engine_kl"] > 0 and first["own_experts_kl"] > 0
    assert "own_experts_kl" not in second and second["engine_kl"] > 0
    assert not own.keys() & {"experts_changed_ratio", "engine_kl"}


def test_values_of_the_start_of_a_step_are_replayed(folder: Path, rank: TrainerRank) -> None:
    """The ratio of the first update is 1: pi_old has the same experts as the policy."""
    (groups,) = grpo_updates(with_routes(rollout_groups(2, 4)), updates=1, seed=0)
    rows = [row for group in groups for row in group]
    batches = distribute_rows(rows, ranks=1, tokens_per_micro_batch=64, packed=True)[0]
    tally = rank.grpo([batches, batches], 0.0, GRPOSettings(updates_per_step=2))
    assert tally.maxima["ratio_max"] == pytest.approx(1.0, abs=1e-6)


def test_experts_have_their_own_names_in_files_and_deltas(folder: Path, rank: TrainerRank, tmp_path: Path) -> None:
    """An export has the tensors of the first folder, and a delta only those of the experts that changed."""
    policy = policy_of(folder, rank)
    (tmp_path / "exported").mkdir()
    copy_companions(folder, tmp_path / "exported")
    export.write_weights(policy, folder, tmp_path / "exported")
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "exported"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    writer = ShardWriter(rank=0, dtype=torch.float32)

    def write(base: str | None, name: str) -> dict[str, int]:
        (tmp_path / name).mkdir()
        summary = writer.write(tmp_path / name, trained_shards(policy), base=base, tensors=policy.tensor_names)
        writer.commit(name)
        file = ShardFile.read(tmp_path / name / summary.name, digest=summary.digest)
        return {shard.name: shard.count if shard.positions is None else len(shard.positions) for shard in file.shards()}

    assert write(None, "1") == {name: tensor.numel() for name, tensor in before.items()}
    grouped = trained_shards(policy)["model.layers.2.mlp.experts.gate_up_proj"].to_local()
    with torch.no_grad():
        grouped[3, 24 + 7, 5] += 1.0  # the up projection follows the 24 rows of the gate
    assert write("1", "2") == {"model.layers.2.mlp.experts.3.up_proj.weight": 1}


def test_incomplete_experts_are_refused(folder: Path, rank: TrainerRank, tmp_path: Path) -> None:
    """A folder without one part of one expert is refused by its name."""
    broken = tmp_path / "broken"
    export_folder(folder, broken, without="model.layers.0.mlp.experts.2.up_proj.weight")
    with pytest.raises(ValueError, match=r"missing \['model.layers.0.mlp.experts.gate_up_proj, part 1 of expert 2'\]"):
        policy_of(broken, rank)


def export_folder(source: Path, target: Path, *, without: str) -> None:
    from safetensors.torch import save_file

    target.mkdir()
    copy_companions(source, target)
    tensors = load_file(source / "model.safetensors")
    del tensors[without]
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
