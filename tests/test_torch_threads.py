"""Threads in place of the torch backend's worker processes, and the random numbers that each has
for itself."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import randint
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload
from fastload.backends import objects, own_numbers, torch_workers_threads
from fastload.backends.gathered import Gathered
from fastload.backends.own_numbers import (
    OwnNumbers,
    _functions_of,
    global_numbers_in,
    operators_that_draw,
)
from fastload.backends.torch_workers import TorchOptions
from fastload.errors import ConfigurationError, SampleError, WorkerError
from fastload.host_memory import BufferPool
from tests.images import write_photo_folder


@pytest.fixture(scope="module")
def class_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo_folder(tmp_path_factory.mktemp("photos"))


class Noisy(Dataset[Any]):
    """Samples of an image and numbers that are drawn."""

    def __init__(self, draw: Callable[[], Any] = lambda: torch.rand(3)) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 8, 8), index / 16), self.draw()


def batches(source: Any, *, transform: Any = None, num_workers: int, **options: Any) -> Any:
    given = TorchOptions(**options)
    with fastload.create_loader(
        source,
        4,
        shuffle=True,
        seed=5,
        transform=transform,
        backend="torch",
        num_workers=num_workers,
        options=given,
    ) as loader:
        return [batch for _ in range(2) for batch in loader], loader.explain()


def test_threads_make_the_samples_of_processes_and_leave_the_global_generators_alone() -> None:
    alone, _ = batches(Noisy(), num_workers=0)
    before = torch.random.get_rng_state(), random.getstate()
    threaded, words = batches(Noisy(), num_workers=3, threads=True)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert "3 worker threads" in str(words)
    for mine, theirs in zip(threaded, alone, strict=True):
        assert all(map(torch.equal, mine, theirs))
    assert len({float(number) for _, numbers in threaded for number in numbers[:, 0]}) == 24


def test_transforms_of_torchvision_draw_the_same_in_threads(class_folder: Path) -> None:
    transform = v2.Compose(
        [
            v2.Resize((24, 24)),
            v2.RandomApply([v2.ColorJitter(0.5, 0.5, 0.5, 0.2)], 0.7),
            lambda image: image,  # so that all of it runs as it was written
            v2.AugMix(),
            v2.RandomPerspective(0.5, p=0.9),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.GaussianNoise(),
            v2.RandomErasing(1.0, value="random"),
            lambda image: image,
        ]
    )
    alone, _ = batches(class_folder, transform=transform, num_workers=0)
    threaded, _ = batches(class_folder, transform=transform, num_workers=2, threads=True)
    for mine, theirs in zip(threaded, alone, strict=True):
        assert all(map(torch.equal, mine, theirs))


LIKE = torch.zeros(5)
DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "bernoulli": lambda: torch.bernoulli(LIKE + 0.5),
    "bernoulli_": lambda: torch.empty(50).bernoulli_(0.5),
    "binomial": lambda: torch.binomial(LIKE + 9, LIKE + 0.5),
    "cauchy_": lambda: torch.empty(5).cauchy_(),
    "exponential_": lambda: torch.empty(5).exponential_(),
    "geometric_": lambda: torch.empty(5).geometric_(0.1),
    "log_normal_": lambda: torch.empty(5).log_normal_(),
    "multinomial": lambda: torch.multinomial(LIKE + 1, 3),
    "normal": lambda: torch.normal(LIKE, LIKE + 1),
    "normal_": lambda: torch.empty(5).normal_(),
    "poisson": lambda: torch.poisson(LIKE + 9),
    "rand": lambda: torch.rand(2, 3),
    "rand_like": lambda: torch.rand_like(LIKE),
    "randint": lambda: torch.randint(1000, (5,)),
    "randint_like": lambda: torch.randint_like(LIKE, 3, 1000),
    "randint_like_high": lambda: torch.randint_like(LIKE, high=1000),
    "randn": lambda: torch.randn(17),
    "randn_like": lambda: torch.randn_like(torch.zeros(5, dtype=torch.uint8), dtype=torch.float32),
    "random_": lambda: torch.empty(5).random_(3, 1000),
    "randperm": lambda: torch.randperm(9),
    "svd_lowrank": lambda: torch.svd_lowrank(torch.arange(64.0).reshape(8, 8), 2)[0],
    "uniform_": lambda: torch.empty(5).uniform_(2, 3),
    "_sample_dirichlet": lambda: torch._sample_dirichlet(LIKE + 1),
    "_standard_gamma": lambda: torch._standard_gamma(LIKE + 1),
    "alpha_dropout": lambda: F.alpha_dropout(LIKE + 1, training=True),
    "alpha_dropout_": lambda: torch.alpha_dropout_(LIKE + 1, 0.5, True),
    "dropout": lambda: F.dropout(LIKE + 1),
    "dropout_": lambda: F.dropout(LIKE + 1, inplace=True),
    "feature_alpha_dropout": lambda: F.feature_alpha_dropout(torch.ones(1, 50), training=True),
    "feature_alpha_dropout_": lambda: torch.feature_alpha_dropout_(torch.ones(1, 50), 0.5, True),
    "feature_dropout": lambda: torch.feature_dropout(torch.ones(1, 50), 0.5, True),
    "feature_dropout_": lambda: torch.feature_dropout_(torch.ones(1, 50), 0.5, True),
    "gru": lambda: recurrent(torch.nn.GRU),
    "gumbel_softmax": lambda: F.gumbel_softmax(LIKE),
    "initialised": lambda: torch.nn.init.kaiming_uniform_(torch.empty(3, 3)),
    "lstm": lambda: recurrent(torch.nn.LSTM),
    "module": lambda: torch.nn.Dropout()(LIKE + 1),
    "native_dropout": lambda: torch.native_dropout(LIKE + 1, 0.5, True)[0],
    "normal_of_numbers": lambda: torch.normal(2.0, 3.0, (4,)),
    "operator": lambda: torch.ops.aten.rand.default([3]),
    "out": lambda: torch.rand(3, out=torch.empty(3)),
    "random_of_all": lambda: torch.empty(5).random_(),
    "rnn_relu": lambda: recurrent(torch.nn.RNN, nonlinearity="relu"),
    "rnn_tanh": lambda: recurrent(torch.nn.RNN),
    "rrelu": lambda: F.rrelu(LIKE - 1, training=True),
    "rrelu_": lambda: F.rrelu(LIKE - 1, training=True, inplace=True),
    "rrelu_with_noise": lambda: torch.ops.aten.rrelu_with_noise(LIKE - 1, LIKE + 0, 0.1, 0.9, True),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(
        torch.ones(1, 2, 8, 4), torch.ones(1, 2, 8, 4), torch.ones(1, 2, 8, 4), dropout_p=0.5
    ),
}


def recurrent(kind: Any, **options: Any) -> torch.Tensor:
    """Of a network that drops out between its layers; its weights are not drawn."""
    network = kind(4, 4, num_layers=2, dropout=0.5, **options)
    with torch.no_grad():
        for weights in network.parameters():
            weights.fill_(0.1)
    made: torch.Tensor = network(torch.ones(6, 4))[0]
    return made


class Wide(Dataset[Any]):
    """Samples by `make(index)`; the tensors have 64 KiB or more."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def image(index: int, **options: Any) -> torch.Tensor:
    return torch.arange(index, index + 3 * 80 * 90, **options).reshape(3, 80, 90)


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


EVERY = torch.rand(10, 3, 80, 90)
WIDE: dict[str, Callable[[int], Any]] = {
    "tuple": lambda index: (image(index, dtype=torch.float32), index),
    "list": lambda index: [image(index), image(-index), index],
    "dict": lambda index: {"image": image(index), "name": str(index)},
    "named tuple": lambda index: Pair(image(index), index),
    "alone": image,
    "permuted": lambda index: image(index).reshape(80, 90, 3).permute(2, 0, 1),
    "one value": lambda index: torch.full((), index).expand(3, 80, 90),
    "two dtypes": lambda index: (image(index, dtype=torch.float32), image(index).half()),
    "of four dimensions": lambda index: image(index)[None],
    "dtype changes": lambda index: image(index, dtype=torch.int32 if index % 3 else torch.int64),
    "views of one": lambda index: EVERY[index],
    "the same one": lambda index: (EVERY[0], EVERY[0]),
    "complex": lambda index: (image(index) * 1j).conj(),
    "bfloat16": lambda index: image(index).bfloat16().repeat(1, 2, 2),
    "torchvision's": lambda index: (tv_tensors.Image(image(index)), index),
    "torchvision's permuted": lambda index: tv_tensors.Image(
        image(index).reshape(80, 90, 3).permute(2, 0, 1)
    ),
    "permuted in a dict": lambda index: {
        0: image(index).reshape(80, 90, 3).permute(2, 0, 1),
        "image": image(index).reshape(80, 90, 3).permute(2, 0, 1),
    },
    "permuted at times": lambda index: (
        image(index).reshape(80, 90, 3).permute(2, 0, 1) if index % 3 else image(index)
    ),
    "torchvision's and plain": lambda index: (
        tv_tensors.Image(image(index)) if index % 2 else image(index)
    ),
    "torchvision's video": lambda index: tv_tensors.Video(image(index)[None]),
}


@pytest.mark.parametrize("name", sorted(WIDE))
def test_large_tensors_are_put_together_as_torch_does(name: str) -> None:
    threaded, _ = batches(Wide(WIDE[name]), num_workers=2, threads=True)
    alone, _ = batches(Wide(WIDE[name]), num_workers=0)
    assert len(threaded) == len(alone) == 6
    for mine, theirs in zip(threaded, alone, strict=True):
        assert type(mine) is type(theirs)
        leaves = zip(tree_leaves(mine), tree_leaves(theirs), strict=True)
        for one, other in leaves:
            if not isinstance(other, torch.Tensor):
                assert one == other
                continue
            assert one.dtype == other.dtype
            assert one.stride() == other.stride()
            assert torch.equal(one, other)


def test_a_batchs_memory_is_used_again_when_it_is_gone() -> None:
    pool = BufferPool()
    kept = []
    for turn in range(4):
        gathered = Gathered(8, pool.allocate)
        items = [gathered.kept((image(index), index)) for index in range(8 - turn % 2)]
        batch = gathered.collate(items, default_collate_fn_map)
        assert torch.equal(batch[0], torch.stack([image(index) for index in range(len(items))]))
        assert batch[0].data_ptr() == items[0][0].data_ptr()
        if turn == 1:
            kept.append(batch[0])
        del batch, items, gathered
    assert torch.equal(kept[0][3], image(3))
    assert pool.allocated == 2 * 8 * image(0).nbytes


@pytest.mark.parametrize("returned", ["Tensor", "TVTensor"])
def test_images_of_torchvision_are_put_together_as_torch_does(returned: str) -> None:
    made = [tv_tensors.Image(image(index)) for index in range(3)]
    gathered = Gathered(3, BufferPool().allocate)
    with tv_tensors.set_return_type(returned):
        items = [gathered.kept(one) for one in made]
        batch = gathered.collate(items, default_collate_fn_map)
        plain = default_collate(made)
    assert type(batch) is type(plain)
    assert torch.equal(batch, plain)
    # In the memory of the batch from the start, where results are plain tensors.
    assert (batch.data_ptr() == items[0].data_ptr()) == (returned == "Tensor")


@pytest.mark.parametrize("form", ["tuple", "dict", "alone"])
def test_images_that_lie_as_the_batch_is_to_are_not_copied_again(form: str) -> None:
    def one(index: int) -> Any:
        made = image(index).reshape(80, 90, 3).permute(2, 0, 1)
        kinds = {"tuple": (made, made), "dict": {0: made, "image": made}, "alone": made}
        return kinds[form]

    def parts(batch: Any) -> list[torch.Tensor]:
        return list(batch.values()) if isinstance(batch, dict) else list(tree_leaves(batch))

    gathered = Gathered(2, BufferPool().allocate, torch.channels_last)
    mine = gathered.collate(
        [gathered.kept(one(index)) for index in range(2)], default_collate_fn_map
    )
    theirs = default_collate([one(index) for index in range(2)])
    last = {"tuple": [True, False], "dict": [False, True], "alone": [True]}[form]
    for ours, plain, is_last in zip(parts(mine), parts(theirs), last, strict=True):
        assert torch.equal(ours, plain)
        like = plain.contiguous(memory_format=torch.channels_last) if is_last else plain
        assert ours.stride() == like.stride()


def test_images_of_torchvision_go_through_a_collation_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first(images: list[Any], **_: Any) -> Any:
        return images[0]

    monkeypatch.setitem(default_collate_fn_map, tv_tensors.Image, first)
    gathered = Gathered(2, BufferPool().allocate)
    items = [gathered.kept(tv_tensors.Image(image(index))) for index in range(2)]
    batch = gathered.collate(items, default_collate_fn_map)
    assert type(batch) is tv_tensors.Image


def test_worker_processes_leave_putting_together_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a batch in memory of its own, which would be copied to shared memory")

    monkeypatch.setattr(Gathered, "__init__", refused)
    monkeypatch.setattr(objects, "get_worker_info", lambda: object())
    made, _ = batches(Wide(image), num_workers=1, threads=True)
    assert len(made) == 6


def test_samples_of_several_sizes_are_refused_as_without_threads() -> None:
    different = Wide(lambda index: torch.ones(3, 80, 90 + index % 2))
    said = []
    for options in ({"num_workers": 0}, {"num_workers": 2, "threads": True}):
        with pytest.raises(ConfigurationError) as raised:
            batches(different, **options)
        said.append(str(raised.value))
    assert "equal size" in said[0]
    assert [words.partition("(")[0] for words in said] == [said[0].partition("(")[0]] * 2


def test_every_operator_of_torch_that_draws_is_tried() -> None:
    """By the schemas of torch's operators: those with a generator, and those that torch marks."""
    drawing = set()
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten" or packet.endswith("_backward"):
            continue
        op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if op is None:
            continue
        takes = any(argument.name == "generator" for argument in op._schema.arguments)
        if takes or torch.Tag.nondeterministic_seeded in op.tags:
            drawing.add(packet)
    # Attention is called by one name; the fused ones are for GPUs, which workers have no part in.
    drawing = {name for name in drawing if not name.startswith(("_", "miopen", "cudnn"))}
    # Operators that have no function of this name in Python: methods and functions call others.
    drawing = {name for name in drawing if hasattr(torch.Tensor, name) or hasattr(torch, name)}
    drawing.discard("random")  # torch.random is a module
    assert not drawing - DRAWS.keys(), sorted(drawing - DRAWS.keys())


def test_a_generator_stands_after_all_else_that_an_operator_takes_by_place() -> None:
    operators = operators_that_draw()
    assert len(operators) > 50
    for op in operators:
        by_place = [one.name for one in op._schema.arguments if not one.kwarg_only]
        assert "generator" not in by_place[:-1], op


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_own_numbers_are_those_of_the_global_generator_after_the_same_seed(name: str) -> None:
    draw = DRAWS[name]
    with torch.random.fork_rng():
        torch.manual_seed(11)
        wanted = [draw(), draw()]
        torch.manual_seed(12)
        before = torch.random.get_rng_state()
        numbers = OwnNumbers()
        seeded = numbers.generator.manual_seed(11).get_state()
        with numbers:
            assert all(map(torch.equal, [draw(), draw()], wanted))
        assert torch.equal(torch.random.get_rng_state(), before)
        # It has drawn something.
        assert not torch.equal(numbers.generator.get_state(), seeded)


def test_a_class_may_be_written_to_while_it_is_looked_at() -> None:
    """As `copy.copy` in another thread does, which keeps `__slotnames__` in it."""

    class Transform:
        def forward(self) -> None: ...

        def extra(self) -> None: ...

    found = []
    for function in _functions_of(Transform()):
        found.append(function.__name__)
        setattr(Transform, f"after_{function.__name__}", None)
    assert found == ["forward", "extra"]


def test_a_generator_that_the_code_gives_is_used() -> None:
    given = torch.Generator().manual_seed(3)
    wanted = torch.rand(4, generator=torch.Generator().manual_seed(3))
    with OwnNumbers():
        assert torch.equal(torch.rand(4, generator=given), wanted)


def test_a_generator_that_is_given_by_place_is_used() -> None:
    given = torch.Generator().manual_seed(3)
    wanted = torch.poisson(LIKE + 9, torch.Generator().manual_seed(3))
    with OwnNumbers():
        assert torch.equal(torch.poisson(LIKE + 9, given), wanted)


def test_afterwards_all_is_as_before() -> None:
    before = torch._C._dispatch_tls_local_exclude_set(), torch._C._dispatch_tls_local_include_set()
    numbers = OwnNumbers()
    with pytest.raises(RuntimeError), numbers:
        torch.rand(3, dtype=torch.int64)
    after = torch._C._dispatch_tls_local_exclude_set(), torch._C._dispatch_tls_local_include_set()
    assert str(after) == str(before)
    state = numbers.generator.get_state()
    torch.rand(3)
    assert torch.equal(numbers.generator.get_state(), state)


def test_threads_need_a_key_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_numbers, "_kernels", list)
    with pytest.raises(ConfigurationError, match="threads=False"):
        batches(Noisy(), num_workers=2, threads=True)
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    with fastload.create_loader(Noisy(), 4, backend="torch", num_workers=2) as loader:
        assert "cannot give each" in str(loader.explain())


def test_what_draws_nothing_is_left_alone() -> None:
    with OwnNumbers():
        image = F.interpolate(torch.ones(1, 3, 4, 4), size=(2, 2), mode="bilinear", antialias=True)
        assert torch.equal(F.pad(image, (1, 1)).sum(), torch.tensor(12.0))


def test_each_thread_has_its_own() -> None:
    meet = threading.Barrier(2)

    def draw(seed: int) -> list[float]:
        numbers, drawn = OwnNumbers(), []
        numbers.generator.manual_seed(seed)
        with numbers:
            for _ in range(20):
                meet.wait(30)
                drawn.append(float(torch.rand(())))
        return drawn

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(draw, (1, 2)))
    for seed, drawn in zip((1, 2), both, strict=True):
        generator = torch.Generator().manual_seed(seed)
        assert drawn == [float(torch.rand((), generator=generator)) for _ in range(20)]


def helper() -> int:
    return random.randrange(3)


class Drawing:
    def __call__(self, image: Any) -> Any:
        return image * np.random.rand()


class Seeded:
    def __call__(self, image: Any) -> Any:
        torch.manual_seed(3)
        return image


class Own:
    """Has a generator of its own."""

    def __init__(self) -> None:
        self.numbers = np.random.default_rng(0)

    def __call__(self, image: Any) -> Any:
        return image * self.numbers.random() * np.random.default_rng(1).random()


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (lambda image: random.random(), "random in"),
        (lambda image: randint(0, 3), "randint in"),
        (lambda image: helper(), "random in"),
        (lambda image: [random.random() for _ in image], "random in"),
        (functools.partial(lambda a, image: helper(), 3), "random in"),
        (Drawing(), "np.random in Drawing.__call__"),
        (v2.Compose([v2.RandomCrop(3), Drawing()]), "np.random in Drawing.__call__"),
        (v2.Lambda(lambda image: np.random.rand()), "np.random in"),
        (Seeded(), "torch.manual_seed in Seeded.__call__"),
        (random.shuffle, "random.shuffle"),
        (np.random.rand, "numpy.random.rand"),
        (Noisy(lambda: random.random()), "random in"),
        (Own(), ""),
        (v2.RandomCrop(3), ""),
        (lambda image: torch.rand(3), ""),
        (Noisy(), ""),
    ],
)
def test_code_that_uses_a_global_generator_is_seen(thing: Any, words: str) -> None:
    found = global_numbers_in([thing])
    assert found.startswith(words) if words else not found


def test_threads_are_refused_for_what_they_cannot_do() -> None:
    with pytest.raises(ConfigurationError, match="threads: random in"):
        batches(Noisy(lambda: random.random()), num_workers=2, threads=True)
    with pytest.raises(ConfigurationError, match="threads: worker_init_fn"):
        fastload.create_loader(
            Noisy(),
            4,
            backend="torch",
            num_workers=2,
            worker_init_fn=print,
            options=TorchOptions(threads=True),
        )
    with pytest.raises(ConfigurationError, match="threads"):
        TorchOptions(threads="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (v2.RandomPerspective(), "2 worker threads"),
        (v2.Compose([v2.RandomChoice([v2.AugMix(), v2.RandomCrop(8)])]), "2 worker threads"),
        (lambda image: image, "no threads, as <lambda>"),
        (v2.Lambda(lambda image: image), "no threads, as Lambda"),
        (v2.Compose([v2.RandomCrop(8), Own()]), "no threads, as Own"),
    ],
)
def test_without_the_gil_known_code_runs_in_threads(
    class_folder: Path, transform: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    assert torch_workers_threads.gil_is_off()
    with fastload.create_loader(
        class_folder, 4, transform=transform, backend="torch", num_workers=2
    ) as loader:
        assert words in str(loader.explain())


def test_a_datasets_code_runs_in_processes_unless_its_author_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    with fastload.create_loader(Noisy(), 4, backend="torch", num_workers=2) as loader:
        assert "Noisy makes the samples" in str(loader.explain())


def test_what_a_sample_raises_in_a_thread_is_the_samples_error() -> None:
    def fails() -> Any:
        raise ValueError("broken")

    with pytest.raises((SampleError, ValueError), match="broken"):
        batches(Noisy(fails), num_workers=2, threads=True)


def test_a_thread_that_is_late_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_workers_threads, "_PATIENCE", 0.05)
    enough = threading.Event()

    def waits() -> Any:
        while not enough.is_set():
            time.sleep(0.01)
        return 0

    try:
        with pytest.raises(WorkerError, match=r"0\.1 seconds"):
            batches(Noisy(waits), num_workers=1, threads=True, worker_timeout=0.1)
    finally:
        enough.set()
    assert not [one for one in threading.enumerate() if one.name.startswith("fastload-torch")]
