"""Parameter groups, learning rates and the average of weights, against formulas and by hand."""

from __future__ import annotations

import copy
import io
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fastload.errors import ConfigurationError, StateMismatchError
from fastload.train.checkpoint import Progress
from fastload.train.components import (
    MovingAverage,
    create_optimizer,
    create_schedule,
    parameter_groups,
    scaled_lr,
)
from fastload.train.config import OptimizerConfig, ScheduleConfig


class Network(nn.Module):
    """One of each kind of parameter that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.batch = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 5)
        self.layer = nn.LayerNorm((2, 5))
        self.tied = nn.Linear(4, 5, bias=False)
        self.tied.weight = self.linear.weight
        self.embedding = nn.Embedding(7, 5)
        self.scale = nn.Parameter(torch.ones(5))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def test_biases_and_norms_do_not_decay() -> None:
    network = Network()
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    decaying, others = parameter_groups(network, 0.05)
    assert {names[id(p)] for p in decaying["params"]} == {
        "conv.weight",
        "linear.weight",
        "embedding.weight",
    }
    assert {names[id(p)] for p in others["params"]} == {
        "conv.bias",
        "batch.weight",
        "batch.bias",
        "linear.bias",
        "layer.weight",
        "layer.bias",
        "scale",
    }
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.05, 0.0)
    assert len(decaying["params"]) == 3, "tied weights come once"


def test_a_group_without_parameters_is_left_out() -> None:
    assert len(parameter_groups(nn.Linear(2, 2, bias=False), 0.1)) == 1


class Embedded(nn.Module):
    """Names a parameter that is not to decay, as the transformers of timm do."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(1, 4, 8))
        self.weight = nn.Parameter(torch.zeros(8, 8))

    def no_weight_decay(self) -> set[str]:
        return {"pos_embed"}


@pytest.mark.parametrize("within", [False, True])
def test_what_a_network_names_does_not_decay(within: bool) -> None:
    part = Embedded()
    network = nn.Sequential(nn.Linear(8, 8), part) if within else part
    decaying, others = parameter_groups(network, 0.05)
    assert any(one is part.weight for one in decaying["params"])
    assert any(one is part.pos_embed for one in others["params"])
    (group,) = parameter_groups(network, 0.05, decay_all=True)
    assert any(one is part.pos_embed for one in group["params"])


def test_the_optimizers_are_torch_s_own() -> None:
    sgd = create_optimizer(
        Network(), OptimizerConfig(optimizer="sgd", momentum=0.8, weight_decay=0.01), lr=0.3
    )
    assert isinstance(sgd, torch.optim.SGD)
    assert [
        (g["lr"], g["momentum"], g["nesterov"], g["weight_decay"]) for g in sgd.param_groups
    ] == [
        (0.3, 0.8, True, 0.01),
        (0.3, 0.8, True, 0.0),
    ]
    plain = create_optimizer(Network(), OptimizerConfig(optimizer="sgd", momentum=0.0), lr=0.3)
    assert not plain.param_groups[0]["nesterov"]
    adamw = create_optimizer(Network(), OptimizerConfig(optimizer="adamw", momentum=0.85), lr=0.01)
    assert isinstance(adamw, torch.optim.AdamW)
    assert (adamw.param_groups[0]["lr"], adamw.param_groups[0]["betas"]) == (0.01, (0.85, 0.999))


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_fused_steps_are_the_same_and_do_not_ask_the_device(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp16 too: `GradScaler.step` reads a verdict back from the device unless the optimizer can
    do with it there."""
    asked: list[Any] = []
    item = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: asked.append(tensor) or item(tensor))
    ends, questions = [], []
    for fused in (False, True):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = create_optimizer(network, OptimizerConfig(optimizer=kind), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        asked.clear()
        for step in range(4):
            scaler.scale(network(torch.full((5, 3), 0.1 * step)).square().sum()).backward()
            if step == 2:  # overflown: no update
                network[0].weight.grad[0, 0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        questions.append(len(asked))
        ends.append(network.state_dict())
    torch.testing.assert_close(ends[1], ends[0])
    assert questions[0] > 0
    assert questions[1] == 0


def test_decay_moves_weights_and_no_norms() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    optimizer = create_optimizer(
        network, OptimizerConfig(optimizer="adamw", weight_decay=0.5), lr=0.1
    )
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after = network.state_dict()
    torch.testing.assert_close(after["0.weight"], before["0.weight"] * (1 - 0.1 * 0.5))
    assert all(torch.equal(after[name], before[name]) for name in ("0.bias", "1.weight", "1.bias"))


@pytest.mark.parametrize(
    ("reference", "value", "sentence"),
    [
        (256, 0.2, "lr 0.1 for a batch of 256, times 512/256 = 0.2"),
        (None, 0.1, "lr 0.1, not scaled with the batch of 512"),
        (0, 0.1, "lr 0.1, not scaled with the batch of 512"),
    ],
)
def test_the_rate_is_scaled_with_the_global_batch_and_says_so(
    reference: int | None, value: float, sentence: str
) -> None:
    rate = scaled_lr(OptimizerConfig(lr=0.1, reference_batch=reference), global_batch=512)
    assert rate.value == pytest.approx(value, rel=1e-12)
    assert rate.sentence == sentence


# -- Schedules -------------------------------------------------------------------------------------

STEPS = 20
"""Optimizer steps an epoch."""


def rates(config: ScheduleConfig, *, resumed_after: int | None = None) -> list[float]:
    """The rate of each step of a run, with another optimizer and scheduler in the middle if
    asked."""

    def fresh() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = create_optimizer(nn.Linear(2, 2), OptimizerConfig(), lr=0.4)
        return optimizer, create_schedule(optimizer, config, steps_per_epoch=STEPS)

    optimizer, schedule = fresh()
    found = []
    for step in range(config.epochs * STEPS):
        if step == resumed_after:
            file = io.BytesIO()
            torch.save((optimizer.state_dict(), schedule.state_dict()), file)
            states = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            optimizer, schedule = fresh()
            optimizer.load_state_dict(states[0])
            schedule.load_state_dict(states[1])
        assert len({group["lr"] for group in optimizer.param_groups}) == 1
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


CONFIGS = {
    "cosine": ScheduleConfig(epochs=10, schedule="cosine"),
    "cosine, warm-up": ScheduleConfig(epochs=10, schedule="cosine", warmup_epochs=2.5),
    "step": ScheduleConfig(epochs=10, schedule="step", milestones=(4.0, 6.5), gamma=0.2),
    "step, warm-up": ScheduleConfig(
        epochs=10, schedule="step", milestones=(4.0, 6.5), gamma=0.2, warmup_epochs=1
    ),
    "poly": ScheduleConfig(epochs=10, schedule="poly"),
    "constant, warm-up": ScheduleConfig(epochs=10, schedule="constant", warmup_epochs=1),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "cosine",
            {
                0: 0.4,
                50: 0.2 * (1 + math.cos(math.pi / 4)),
                100: 0.2,
                199: 0.2 * (1 - math.cos(math.pi / 200)),
            },
        ),
        (
            "cosine, warm-up",
            {0: 0.004, 25: 0.4 * 0.505, 50: 0.4, 125: 0.2, 100: 0.2 * (1 + math.cos(math.pi / 3))},
        ),
        ("step", {0: 0.4, 79: 0.4, 80: 0.08, 129: 0.08, 130: 0.016, 199: 0.016}),
        ("step, warm-up", {0: 0.004, 10: 0.4 * 0.505, 20: 0.4, 79: 0.4, 80: 0.08, 130: 0.016}),
        ("poly", {0: 0.4, 100: 0.4 * 0.5**0.9, 199: 0.4 * 0.005**0.9}),
        ("constant, warm-up", {0: 0.004, 5: 0.4 * (0.01 + 0.99 / 4), 20: 0.4, 199: 0.4}),
    ],
)
def test_schedules_follow_their_formula(name: str, expected: dict[int, float]) -> None:
    found = rates(CONFIGS[name])
    for step, rate in expected.items():
        assert found[step] == pytest.approx(rate, rel=1e-12), f"step {step}"


def test_a_step_schedule_needs_to_know_when() -> None:
    with pytest.raises(
        ConfigurationError, match=r"milestones: .* where there is no step_epochs, got \(\)"
    ):
        ScheduleConfig(schedule="step")


def test_without_warm_up_the_cosine_is_torch_s() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10 * STEPS)
    theirs = []
    for _ in range(10 * STEPS):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates(CONFIGS["cosine"]) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("after", [7, 50, 131])
def test_a_resumed_schedule_is_the_uninterrupted_one(name: str, after: int) -> None:
    assert rates(CONFIGS[name], resumed_after=after) == rates(CONFIGS[name])


def test_a_cosine_does_not_rise_again_after_its_end() -> None:
    optimizer = create_optimizer(nn.Linear(2, 2), OptimizerConfig(), lr=0.4)
    schedule = create_schedule(optimizer, ScheduleConfig(epochs=1), steps_per_epoch=3)
    for _ in range(5):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


# -- Average ---------------------------------------------------------------------------------------


def test_the_average_is_an_exponential_one_of_weights_and_statistics() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    averaged = MovingAverage(network, 0.9)
    torch.manual_seed(0)
    expected: dict[str, torch.Tensor] = {}
    for _ in range(4):
        with torch.no_grad():
            for value in network.state_dict().values():
                if value.is_floating_point():
                    value.copy_(torch.randn_like(value))
        averaged.update(network)
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                expected[name] = (
                    0.9 * expected[name] + 0.1 * value if name in expected else value.clone()
                )
    found = averaged.module.state_dict()
    assert "1.running_var" in expected
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


@pytest.mark.parametrize("saved", [True, False])
def test_a_state_is_resumed_by_the_kernels_of_this_machine(saved: bool) -> None:
    """Saved with a GPU (fused) and resumed without, or the other way round: fused kernels count
    steps elsewhere."""

    def trained(fused: bool) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(1)
        network = nn.Linear(3, 2)
        optimizer = create_optimizer(
            network, OptimizerConfig(optimizer="adamw"), lr=0.1, fused=fused
        )
        return (
            network,
            optimizer,
            create_schedule(optimizer, ScheduleConfig(epochs=4), steps_per_epoch=1),
        )

    def advance(network: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any) -> None:
        network(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    one, other = trained(saved), trained(not saved)
    advance(*one)
    state = copy.deepcopy({"optimizer": one[1].state_dict(), "scheduler": one[2].state_dict()})
    other[0].load_state_dict(one[0].state_dict())
    progress: Any = SimpleNamespace(
        _components=SimpleNamespace(optimizer=other[1], schedule=other[2]), step=1
    )
    Progress._load_optimizer(progress, state)
    assert [group["fused"] for group in other[1].param_groups] == [not saved] * 2
    assert state["optimizer"]["param_groups"][0]["fused"] is saved, "what was given stays as it is"
    advance(*one)
    advance(*other)
    torch.testing.assert_close(other[0].state_dict(), one[0].state_dict())


def test_a_state_with_weight_decay_on_other_parameters_is_refused_by_name() -> None:
    part = Embedded()
    old = torch.optim.SGD([{"params": [part.weight, part.pos_embed], "weight_decay": 0.05}], lr=0.1)
    new = torch.optim.SGD(parameter_groups(part, 0.05), lr=0.1)
    progress: Any = SimpleNamespace(_components=SimpleNamespace(optimizer=new, schedule=None))
    with pytest.raises(
        StateMismatchError, match=r"groups of \[2\] tensors.*\[1, 1\].*no_weight_decay"
    ):
        Progress._load_optimizer(progress, {"optimizer": old.state_dict()})
