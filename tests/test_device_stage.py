"""What the device stage and its neighbours do with CUDA, as far as it can be seen without a GPU:
stand-ins for torch's functions, and the meta device in the place of one."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref
from collections import UserDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload
from fastload import host_memory
from fastload.backends.base import SIZES, HostBatch
from fastload.backends.cache import fits_on_gpu
from fastload.cache import resident
from fastload.device import DeviceStage, Staged, _tensors
from fastload.draws import Draws
from fastload.errors import CacheError, ConfigurationError
from fastload.geometry import Resampling
from fastload.host_memory import BufferPool
from fastload.recipe import Recipe
from fastload.recipe.mix import MixUp
from fastload.recipe.outputs import Outputs
from fastload.render import device as device_rendering
from fastload.render import transfer
from fastload.sources import Ragged, open_source
from fastload.sources.kinds import IMAGE, VALUE
from fastload.spans import SpanLog
from tests import simulated_gpu
from tests.simulated_gpu import GPU, LazyGpu, LazyStream


class FakeCuda:
    """Streams that note whom they wait for, and the devices that are made current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[tuple[Any, Any]] = []
        self.devices: list[Any] = []
        self.within: list[Any] = []
        self.current = self.stream()
        self.made = 0

        @contextmanager
        def device(which: Any) -> Iterator[None]:
            self.within.append(which)
            yield
            self.within.pop()

        @contextmanager
        def stream(which: Any) -> Iterator[None]:
            yield

        event = SimpleNamespace(
            record=lambda stream: None, query=lambda: False, synchronize=lambda: None
        )
        for name, value in {
            "device": device,
            "stream": stream,
            "Stream": lambda device: self.stream(),
            "Event": lambda **given: event,
            "current_stream": lambda device=None: self.current,
            "set_device": self.devices.append,
            "current_device": lambda: 2,
            "is_available": lambda: True,
            "device_count": lambda: 4,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def stream(self) -> Any:
        self.made = getattr(self, "made", 0) + 1
        made = SimpleNamespace(number=self.made, synchronize=lambda: None)
        made.wait_stream = lambda other: self.waits.append((made, other))
        return made


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


class OnGpu(torch.Tensor):
    """Says that it lies on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def stage_on(device: torch.device, **given: Any) -> DeviceStage:
    program = Recipe.from_transform(None).split().batch
    return DeviceStage(device=device, programs=[program], outputs=Outputs(()), **given)


@pytest.mark.parametrize("collated", [True, False])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_only_what_lies_on_the_gpu_already_is_waited_for(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, on_gpu: bool, collated: bool
) -> None:
    """Without workers the current stream is the trainer's, with all that it has queued."""
    monkeypatch.setattr(DeviceStage, "_assemble", lambda *given, **named: "batch")
    tensor = torch.zeros(2).as_subclass(OnGpu) if on_gpu else torch.zeros(2)
    for column in (tensor, Ragged(tensor, torch.tensor([0, 1, 2]))):
        columns = {"a": np.zeros(2), "b": column}
        host = HostBatch({}, collated=[columns, "text"]) if collated else HostBatch(columns)
        stage = stage_on(GPU)
        assert stage.run(host, Draws(0, 0, np.arange(2)), 0).batch == "batch"
        assert [other for _, other in cuda.waits] == ([cuda.current] if on_gpu else [])
        cuda.waits.clear()


def test_page_locking_happens_on_the_gpu_of_the_trainer(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that works ahead begins on GPU 0, where it would open a context."""
    stage = stage_on(torch.device("cpu"), pinned=True)
    stage.prepare()
    thread = threading.Thread(target=stage.claim_thread)
    thread.start()
    thread.join()
    assert cuda.devices == [2]
    plain = stage_on(torch.device("cpu"))
    plain.prepare()
    plain.claim_thread()
    assert cuda.devices == [2], "nothing to page-lock"


def test_a_thread_that_works_ahead_queues_on_the_stages_own_stream(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins on the default stream, which is the trainer's."""
    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_stream", chosen.append)
    stage = stage_on(GPU)
    stage.prepare()
    stage.claim_thread()
    assert chosen == [stage.stream]
    assert not cuda.devices


def test_batches_that_stay_on_the_cpu_are_page_locked_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned: list[tuple[int, ...]] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tuple(tensor.shape))
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    host = HostBatch({"a": np.arange(6).reshape(2, 3), "b": [np.zeros(2), "text"]})
    for asked, wanted in ((False, []), (True, [(2, 3)])):
        stage = stage_on(torch.device("cpu"), pinned=asked)
        batch = stage.deliver(stage.run(host, Draws(0, 0, np.arange(2)), 0))
        assert batch[0].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert pinned == wanted


class Pair(NamedTuple):
    first: Any
    second: Any


class Encoding(UserDict[str, Any]):
    """As the tokenizers of transformers give."""


def test_what_a_collate_function_makes_keeps_its_type_where_its_tensors_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    stage, tensor = stage_on(torch.device("cpu"), pinned=True), torch.arange(3)
    given = {
        "dict": {"a": tensor, "b": "text"},
        "mapping": Encoding(a=tensor, b="text"),
        "fixed": MappingProxyType({"a": tensor, "b": "text"}),
        "named": Pair(tensor, "text"),
        "tuple": (tensor, "text"),
        "untouched": Encoding(b="text"),
    }
    host = HostBatch({}, collated=given)
    found = stage.deliver(stage.run(host, Draws(0, 0, np.arange(3)), 0))
    assert found["untouched"] is given["untouched"]
    for name, made in found.items():
        assert type(made) is (dict if name == "fixed" else type(given[name]))
        parts = list(made.values()) if isinstance(made, Mapping) else list(made)
        before = given[name]["a"] if isinstance(made, Mapping) and "a" in made else tensor
        assert parts[-1] == "text"
        if len(parts) > 1:
            assert torch.equal(parts[0], tensor)
            assert parts[0] is not tensor
            assert before is tensor, "what was given stays as it was"


HEAVY = v2.GaussianBlur(3)


@pytest.mark.parametrize(
    ("device", "transform", "given", "light"),
    [
        ("cpu", v2.ToDtype(torch.float32, scale=True), {}, True),
        ("cpu", HEAVY, {}, False),
        ("cuda:3", None, {}, False),
        ("cpu", None, {"pinned": True}, False),
        ("cpu", None, {"mix": MixUp(num_classes=3)}, False),
    ],
)
def test_what_only_converts_numbers_in_memory_needs_no_thread(
    device: str, transform: Any, given: dict[str, Any], light: bool
) -> None:
    program = Recipe.from_transform(transform).split((8, 8)).programs[0]
    stage = DeviceStage(
        device=torch.device(device), programs=[program], outputs=Outputs(()), **given
    )
    assert stage.light is light


def test_a_loader_prepares_its_stage_in_the_trainers_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, str]] = []
    for name in ("prepare", "claim_thread"):
        monkeypatch.setattr(
            DeviceStage,
            name,
            lambda self, name=name: seen.append((name, threading.current_thread().name)),
        )
    crop = v2.RandomResizedCrop(4)  # more work than to hand it over
    with fastload.create_loader(
        (np.zeros((8, 4, 4, 3), np.uint8), np.arange(8)), 2, transform=crop
    ) as loader:
        next(iter(loader))
    assert seen[0] == ("prepare", threading.current_thread().name)
    assert ("claim_thread", "fastload-prefetcher") in seen


@pytest.mark.whole
@pytest.mark.parametrize("allowed", [True, False])
def test_page_locked_buffers_are_registered_once_at_their_size(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """torch's own allocator takes 64 MB for 38; and a call to register stops the GPU, or breaks a
    graph's capture."""
    registered: dict[int, int] = {}
    within: list[Any] = []

    def register(address: int, nbytes: int, flags: int) -> int:
        assert flags == 0
        within.append(list(cuda.within))
        registered[address] = nbytes
        return 0 if allowed else 801

    empty, torchs, asked = torch.empty, [], list[Any]()

    def launch(*size: Any, device: Any) -> None:
        """The next kernel: CUDA tells it of a call before that has failed."""
        asked.append(device)
        raise RuntimeError("CUDA error: operation not supported")

    def spy(*size: Any, pin_memory: bool = False, **given: Any) -> torch.Tensor:
        torchs.append(pin_memory)
        return empty(*size, **given)

    monkeypatch.setattr(torch, "empty", spy)
    monkeypatch.setattr(torch, "zeros", launch)
    monkeypatch.setattr(
        torch.cuda,
        "cudart",
        lambda: SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=registered.pop),
    )
    pool = BufferPool(pinned_for=GPU)
    first, second = (pool.allocate((38 << 20,)) for _ in range(2))
    assert within == [[GPU], [GPU]], "page-locking opens a context on the current GPU"
    if not allowed:
        assert torchs == [True, True], "torch has other ways"
        assert asked == ["cuda", "cuda"], "the error is not left to a kernel of the trainer's"
        return
    assert not asked
    assert sorted(registered) == sorted(array.ctypes.data for array in (first, second))
    assert set(registered.values()) == {38 << 20}
    del first, second
    for nbytes in (38 << 20, 20 << 20, 30_000_001):
        last = pool.allocate((nbytes,))
        assert last.ctypes.data in registered, "the last batch of an epoch, which is smaller"
        del last
    assert len(within) == 2
    small = pool.allocate((2048,))
    assert registered[small.ctypes.data] == 4096, "labels do not take the memory of images"
    del small, pool
    gc.collect()
    assert not registered


def test_ordinary_buffers_are_not_page_locked(cuda: FakeCuda) -> None:
    assert BufferPool(least=1).allocate((2, 3)).shape == (2, 3)
    assert not cuda.within


def test_a_block_serves_arrays_down_to_a_quarter_of_it() -> None:
    pool = BufferPool(least=100)
    small, first = pool.allocate((99,)), pool.allocate((4, 100))
    assert pool.allocated == 400, "less than `least` is left to malloc"
    address = first.ctypes.data
    del small, first
    for nbytes, same in ((400, True), (100, True), (101, True), (401, False)):
        array = pool.allocate((nbytes,))
        assert array.nbytes == nbytes
        assert (array.ctypes.data == address) is same
        del array
    assert pool.allocated == 401, "the larger block has taken the place of the other"
    few = BufferPool(least=1)
    del (block := [few.allocate((400,))])[0]
    few.allocate((99,))
    assert few.allocated == 499
    assert not block


def test_of_several_sizes_no_more_is_kept_than_the_largest_of_those_in_use() -> None:
    pool, rng = BufferPool(least=1), np.random.default_rng(0)
    in_use = [pool.allocate((int(size),)) for size in (300, 310, 320)]
    for size in [*range(301, 400, 7), *rng.integers(300, 401, 50).tolist(), 400]:
        in_use = [*in_use[1:], pool.allocate((int(size),))]
    assert pool.allocated <= 4 * 400


def test_an_array_without_elements_takes_no_block(cuda: FakeCuda) -> None:
    assert BufferPool(pinned_for=GPU).allocate((0, 5)).shape == (0, 5)
    assert not cuda.within


# -- what streams do late --------------------------------------------------------------------------


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> LazyGpu:
    return LazyGpu(monkeypatch)


def filled(pool: BufferPool, value: int) -> HostBatch:
    array = pool.allocate((64,))
    array[:] = value
    return HostBatch({"a": array})


def deliver(stage: DeviceStage, host: HostBatch, number: int) -> torch.Tensor:
    (batch,) = stage.deliver(stage.run(host, Draws(0, 0, np.arange(2)), number))
    return batch


@pytest.mark.whole
def test_a_page_locked_buffer_is_not_refilled_before_it_is_copied(lazy: LazyGpu) -> None:
    stage, pool = stage_on(GPU), BufferPool(pinned_for=GPU, least=1)
    reads = [lazy.read(deliver(stage, filled(pool, value), value)) for value in range(1, 6)]
    gc.collect()
    assert [read() for read in reads] == [1, 2, 3, 4, 5]
    for value in range(6, 9):
        assert lazy.read(deliver(stage, filled(pool, value), value))() == value
    assert pool.allocated <= 6 * 64, "what has been copied is used again"
    stage.close()
    assert not stage._copying
    assert not stage._delivered


def test_rows_of_variable_length_go_to_the_gpu_in_one_copy(lazy: LazyGpu) -> None:
    rng, lengths = np.random.default_rng(1), [[2, 0, 3], [1, 1, 0]]
    boxes = Ragged.of([rng.random((count, 4)) for count in lengths[0]])
    names = Ragged.of([rng.integers(0, 9, count) for count in lengths[1]])
    host = HostBatch({"boxes": boxes, "images": np.arange(6, dtype=np.uint8), "names": names})
    stage = stage_on(GPU)
    batch = stage.deliver(stage.run(host, Draws(0, 0, np.arange(3)), 0))
    assert lazy.copies == 2
    assert lazy.waits == 0
    stage.stream.run()
    for found, given, counts in zip(batch[::2], (boxes, names), lengths, strict=True):
        assert found.values.is_cuda
        assert found.values.as_subclass(torch.Tensor).tolist() == given.values.tolist()
        assert found.on_host.tolist() == np.cumsum([0, *counts]).tolist()
        assert lazy.trainer in found.values.recorded
    assert batch[1].as_subclass(torch.Tensor).tolist() == list(range(6))


def test_the_log_has_when_the_gpu_worked_on_each_batch(lazy: LazyGpu) -> None:
    stage, pool, log = stage_on(GPU), BufferPool(pinned_for=GPU, least=1), SpanLog()
    deliver(stage, filled(pool, 1), 0)
    assert not lazy.timed, "nobody asked"
    stage.record(log)
    for number in (1, 2):
        deliver(stage, filled(pool, 1), number)
    stage.record(None)
    deliver(stage, filled(pool, 1), 3)
    clock, *of_batches = lazy.timed
    assert clock not in (stage.stream, lazy.trainer), "tied to the host's clock before the first"
    assert of_batches == [stage.stream] * 4
    first, second = log
    assert [span.args for span in (first, second)] == [{"epoch": 0, "step": n} for n in (1, 2)]
    assert first.begin < first.end < second.begin < second.end
    assert lazy.spinning == 0


@pytest.mark.whole
def test_a_batch_that_is_let_go_of_is_not_overwritten_before_it_is_read(lazy: LazyGpu) -> None:
    """The trainer queues its work and drops the batch; the loader's stream goes on at once."""
    stage, pool = stage_on(GPU), BufferPool(pinned_for=GPU, least=1)
    reads = []
    for value in range(1, 6):
        batch = deliver(stage, filled(pool, value), value)
        reads.append(lazy.read(batch))
        del batch
        gc.collect()
        stage.stream.run()
    assert [read() for read in reads] == [1, 2, 3, 4, 5]


@pytest.mark.whole
def test_a_batch_of_the_backends_own_stream_is_read_when_it_is_there_and_kept_as_long(
    lazy: LazyGpu,
) -> None:
    """What was made on a device comes from another stream than the stage's."""
    stage, backend = stage_on(GPU), LazyStream(77)
    reads, sources = [], []
    for value in range(1, 6):
        with torch.cuda.stream(backend):  # type: ignore[arg-type]
            source = torch.full((64,), value, dtype=torch.uint8)
            sources.append(source)
            made = lazy.copy(source)
            staged = stage.run(HostBatch({"a": made}), Draws(0, 0, np.arange(2)), value)
        (batch,) = stage.deliver(staged)
        assert batch is made
        assert made.recorded == [stage.stream, lazy.trainer]
        reads.append(lazy.read(batch))
        del batch, made, staged
        gc.collect()
    assert [read() for read in reads] == [1, 2, 3, 4, 5]


def test_memory_of_many_views_is_kept_by_one_note(lazy: LazyGpu) -> None:
    """A list of the images of a batch is as many tensors over one piece of memory."""
    noted: list[int] = []

    class OnGpu(torch.Tensor):
        is_cuda = True  # type: ignore[assignment]

        def record_stream(self, stream: Any) -> None:
            noted.append(self.untyped_storage().nbytes() if self.layout == torch.strided else -1)

    stage, pool = stage_on(GPU), BufferPool(pinned_for=GPU, least=1)
    ready = stage.run(filled(pool, 1), Draws(0, 0, np.arange(2)), 0).ready
    views = torch.zeros(8, 5).as_subclass(OnGpu).unbind(0)
    other = torch.zeros(3).as_subclass(OnGpu)
    here = torch.zeros(7)  # which no stream keeps
    (*_, back) = stage.deliver(Staged([*views, {"boxes": other[1:]}, here], ready))
    assert noted == [160, 12]
    assert back is here

    class Jagged(OnGpu):
        layout = torch.jagged  # type: ignore[assignment]

        def untyped_storage(self) -> Any:
            raise NotImplementedError("Cannot access storage of NestedTensor")

    stage.deliver(Staged([torch.eye(2).as_subclass(Jagged)], ready))
    assert noted[2:] == [-1]
    stage.deliver(Staged([torch.zeros(8, 5).as_subclass(OnGpu)], ready, sharing=4))
    assert [nbytes for _, nbytes in stage._delivered] == [172, 0, 40]


@dataclass(slots=True)
class Slots:
    images: Any
    others: Any


class Attributes:
    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)
        self.me = self


def test_memory_is_kept_of_tensors_in_whatever_a_collate_function_makes(lazy: LazyGpu) -> None:
    """In objects; and of sparse tensors, of which no stream of CUDA can take note."""
    program, outputs = Recipe.from_transform(None).split().batch, Outputs.of_kinds({"a": VALUE})
    pool, others = BufferPool(pinned_for=GPU, least=1), [on_gpu() for _ in range(3)]

    class Sparse(OnGpu):
        layout = torch.sparse_csr  # type: ignore[assignment]

        def record_stream(self, stream: Any) -> None:
            raise NotImplementedError("Could not run 'aten::record_stream' from 'SparseCsrCUDA'")

        def crow_indices(self) -> Any:
            return others[0]

        def col_indices(self) -> Any:
            return others[1]

        def values(self) -> Any:
            return others[2]

    def collate(columns: Any) -> Any:
        sparse = torch.eye(2).as_subclass(Sparse)
        return Slots(columns["a"], {"b": [Attributes(c=Attributes(d=sparse)), "text", 3]})

    stage = DeviceStage(device=GPU, programs=[program], outputs=outputs, collate=collate)
    staged = stage.run(filled(pool, 1), Draws(0, 0, np.arange(2)), 0)
    made = stage.deliver(staged)
    assert made.images.recorded == [lazy.trainer]
    assert [other.recorded for other in others] == [[lazy.trainer]] * 3
    assert [nbytes for _, nbytes in stage._delivered] == [64 + 3 * 4]


def on_gpu() -> Any:
    made = torch.zeros(1).as_subclass(simulated_gpu.OnGpu)
    made.recorded = []
    return made


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_tensor_is_its_parts(layout: torch.layout) -> None:
    matrix = torch.zeros(3, 4)
    matrix[0, 1], matrix[2, 2], matrix[1, 3] = 1, 2, 3
    found = list(_tensors([matrix.to_sparse(layout=layout)]))
    assert all(one.layout == torch.strided for one in found)
    assert len(found) == (2 if layout == torch.sparse_coo else 3)
    assert sorted(found[-1].tolist()) == [1, 2, 3]


def test_only_what_is_done_sample_by_sample_is_taken_apart() -> None:
    cpu = torch.device("cpu")
    assert stage_on(cpu).takes_apart
    assert not stage_on(cpu, mix=MixUp(num_classes=3)).takes_apart
    assert not stage_on(cpu, collate=dict).takes_apart


def test_batches_that_are_taken_apart_have_their_memory_together() -> None:
    images, labels = torch.arange(60).reshape(10, 2, 3), torch.arange(10)
    apart = Staged({"image": images, "views": [labels, labels]}, None).taken_apart([4, 4, 2])
    assert [one.batch["views"][1].tolist() for one in apart] == [
        labels[:4].tolist(),
        labels[4:8].tolist(),
        labels[8:].tolist(),
    ]
    assert torch.equal(torch.cat([one.batch["image"] for one in apart]), images)
    assert all(one.sharing == 3 for one in apart)


def test_what_is_done_to_one_batch_in_place_leaves_the_gradients_of_another() -> None:
    images = torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last)
    one, two = (part.batch for part in Staged(images, None).taken_apart([2, 2]))
    weights = torch.ones(3, 1, 1, requires_grad=True)
    loss = (one * weights).sum()  # its gradient needs `one`
    two.mul_(2)
    loss.backward()
    assert weights.grad is not None
    assert weights.grad.flatten().tolist() == [8, 8, 8]
    assert two.mean() == 2 * one.mean()
    assert one.is_contiguous(memory_format=torch.channels_last)


def test_the_trainers_own_stream_is_the_one_that_waits(lazy: LazyGpu) -> None:
    stage, pool, side = stage_on(GPU), BufferPool(pinned_for=GPU, least=1), LazyStream(5)
    with torch.cuda.stream(side):  # type: ignore[arg-type]
        batch = deliver(stage, filled(pool, 3), 0)
    assert lazy.read(batch, side)() == 3
    assert batch.recorded == [side]  # type: ignore[attr-defined]
    assert not lazy.trainer.work


def test_a_host_that_runs_ahead_is_held_back_before_memory_runs_out(
    lazy: LazyGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, pool = stage_on(GPU), BufferPool(pinned_for=GPU, least=1)
    for value in range(20):
        lazy.read(deliver(stage, filled(pool, value), value))
    assert lazy.waits == 0, "small batches may be many"
    monkeypatch.setattr("fastload.device._MOST_DELIVERED_BYTES", 2 * 64)
    for value in range(20):
        lazy.read(deliver(stage, filled(pool, value), value))
        assert len(stage._delivered) <= 6
    assert lazy.waits >= 20
    assert lazy.spinning == 0, "a core of the host is for decoding"


@pytest.mark.parametrize(("allowed", "ahead"), [(0, 5), (6 * 64, 7), (6 * 64 + 1, 7)])
def test_how_far_a_host_may_run_ahead(
    lazy: LazyGpu, monkeypatch: pytest.MonkeyPatch, allowed: int, ahead: int
) -> None:
    """Four batches that are not worked through, or as many bytes of them; and the one in hand."""
    monkeypatch.setattr("fastload.device._MOST_DELIVERED_BYTES", allowed)
    stage, pool = stage_on(GPU), BufferPool(pinned_for=GPU, least=1)
    waited, delivered = [], []
    for value in range(ahead + 3):
        lazy.read(deliver(stage, filled(pool, value), value))
        waited.append(lazy.waits > 0)
        delivered.append(len(stage._delivered))
    assert waited == [False] * ahead + [True] * 3
    assert delivered == [*range(1, ahead + 1), ahead, ahead, ahead]


def test_what_workers_send_is_page_locked_in_memory_that_is_used_again(
    lazy: LazyGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[int] = []
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.nbytes) or tensor.clone()
    )
    stage = stage_on(GPU)
    for value in range(4):
        images = torch.full((2, 3, 1000, 700), value, dtype=torch.uint8).contiguous(
            memory_format=torch.channels_last
        )
        (batch,) = stage.deliver(
            stage.run(HostBatch({"a": images}), Draws(0, 0, np.arange(2)), value)
        )
        assert lazy.read(batch)() == value
    assert stage._ring is not None
    assert stage._ring.allocated <= 3 * 4_200_000 + 8192
    assert pinned == []
    deliver(stage, HostBatch({"a": torch.zeros(3)}), 9)
    assert pinned == [12], "torch's allocator, which keeps small blocks"
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr("fastload.device.WORTH_KEEPING", 1)
    sparse = torch.eye(3).to_sparse()
    assert stage._page_lock(sparse) is sparse, "it has no memory of its own to copy to"


@pytest.mark.parametrize("ring", [True, False], ids=["the ring", "torch's allocator"])
def test_tv_tensors_keep_their_class_in_page_locked_memory(
    lazy: LazyGpu, monkeypatch: pytest.MonkeyPatch, ring: bool
) -> None:
    sent, to = list[torch.Tensor](), torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    monkeypatch.setattr("fastload.device.WORTH_KEEPING", 1 if ring else 1 << 20)

    def spy(tensor: torch.Tensor, *where: Any, **given: Any) -> torch.Tensor:
        sent.append(tensor)
        return to(tensor, *where, **given)

    monkeypatch.setattr(torch.Tensor, "to", spy)
    boxes = tv_tensors.BoundingBoxes(torch.rand(3, 4), format="CXCYWH", canvas_size=(7, 9))
    images = tv_tensors.Image(torch.rand(2, 3, 4, 5))
    stage = stage_on(GPU)
    stage.run(HostBatch({}, collated=[images, boxes]), Draws(0, 0, np.arange(2)), 0)
    assert [type(one) for one in sent] == [tv_tensors.Image, tv_tensors.BoundingBoxes]
    assert (sent[1].format, sent[1].canvas_size) == (boxes.format, boxes.canvas_size)
    assert all(torch.equal(*two) for two in zip(sent, (images, boxes), strict=True))


@pytest.mark.parametrize(
    "transform", [v2.RandomCrop(6, padding=2), v2.RandomResizedCrop(5)], ids=["crop", "resized"]
)
def test_resident_batches_get_nothing_by_a_copy_that_waits(
    monkeypatch: pytest.MonkeyPatch, transform: Any
) -> None:
    """All that goes from the host to the device goes through `on_device`, whose copies are
    page-locked."""
    sending: list[bool] = []
    waited: list[str] = []
    of_render = resident.render_on_device.__globals__

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            given = [
                a
                for a in torch.utils._pytree.tree_leaves((args, kwargs))
                if isinstance(a, torch.Tensor)
            ]
            from_host = any(a.device.type == "cpu" and a.ndim for a in given)
            to_device = any(
                a.device.type == "meta" for a in (*given, result) if isinstance(a, torch.Tensor)
            )
            if from_host and to_device and not sending:
                waited.append(str(function))
            return result

    on_device = resident.on_device

    def spy(values: Any, device: torch.device) -> torch.Tensor:
        sending.append(True)
        try:
            return on_device(values, device)
        finally:
            sending.pop()

    meta = torch.device("meta")
    source = open_source((np.zeros((8, 9, 9, 3), np.uint8), np.arange(8))).source
    split = Recipe.from_transform(transform).split()
    plan, outputs = split.geometry, Outputs.of(source, split)
    resident_source = resident.ResidentSource(source, [plan], outputs, meta)
    monkeypatch.setattr(resident, "on_device", spy)
    monkeypatch.setitem(of_render, "on_device", spy)
    geometry = plan.resolve(Draws(0, 0, np.arange(4)), np.full((4, 2), 9))
    with Watch():
        size = int(geometry.window[0, 2]), int(geometry.window[0, 3])
        columns = resident_source.batch(np.arange(4), [geometry], [size], [1, 2])
    assert columns["image"].device == columns["label"].device == meta
    assert not waited


OPERATIONS: dict[str, Any] = {
    "rand augment": v2.RandAugment(fill=7),
    "trivial augment": v2.TrivialAugmentWide(),
    "jitter": v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "blur": v2.GaussianBlur(3),
    "erasing": v2.RandomErasing(1.0),
    "noise": v2.RandomErasing(1.0, value="random"),
    "affine": v2.RandomResizedCrop(6, antialias=True),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_batches_do_not_depend_on_the_default_device(name: str) -> None:
    """A script may have set it to "cuda"; what is made for the host stays on the host."""
    program = (
        Recipe.from_transform(v2.Compose([v2.RandomHorizontalFlip(), OPERATIONS[name]]))
        .split((8, 8))
        .programs[0]
    )
    images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    draws, kinds = Draws(0, 0, np.arange(6)), {"image": IMAGE}
    expected = program({"image": images}, kinds, draws)["image"]  # type: ignore[arg-type]
    with torch.device("meta"):
        found = program({"image": images}, kinds, draws)["image"]  # type: ignore[arg-type]
    assert found.device.type == "cpu"
    assert torch.equal(found, expected)


def test_constants_are_sent_once_for_each_stream(
    lazy: LazyGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, ...]] = []

    def on_device(values: Any, device: torch.device) -> torch.Tensor:
        sent.append(values.shape)
        return torch.from_numpy(values)

    monkeypatch.setattr(transfer, "on_device", on_device)
    transfer._constants.cache_clear()
    mean = np.array([0.5, 0.25, 0.125], dtype=np.float32)
    for _ in range(3):
        assert torch.equal(transfer.constants(mean, GPU), torch.tensor([0.5, 0.25, 0.125]))
    assert sent == [(3,)]
    with torch.cuda.stream(LazyStream(9)):  # type: ignore[arg-type]
        transfer.constants(mean, GPU)
    assert sent == [(3,), (3,)], "another stream might read it before it is there"
    transfer._constants.cache_clear()


def test_two_filters_in_a_batch_are_chosen_by_an_index_on_the_device() -> None:
    """An index on the host would make it wait for the device."""
    geometry = (
        Recipe.from_transform(v2.RandomResizedCrop(6, antialias=True))
        .split()
        .geometry.resolve(Draws(0, 0, np.arange(4)), np.full((4, 2), 9))
    )
    geometry = replace(geometry, bicubic=np.array([True, False, True, False]))
    pixels = torch.zeros((4, 3, 9, 9), dtype=torch.uint8, device="meta")
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function._schema.name == "aten::index" and any(
                i is not None and i.device.type == "cpu" for i in args[1]
            ):
                seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        device_rendering.render_batch(pixels, geometry, Resampling("bilinear"))
    assert not seen


@pytest.mark.parametrize("free", [1 << 10, 70 << 30])
def test_where_a_cache_is_served_from_is_the_same_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """Not a question of what happens to be free there."""
    total = 80 << 30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=total)
    )
    assert fits_on_gpu(total // 4 - 1, GPU)
    assert not fits_on_gpu(total // 4 + 1, GPU)


def test_memory_that_torch_keeps_for_new_tensors_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a loader that was closed: the driver takes it to be used."""
    source = open_source((np.zeros((4, 8, 8, 3), np.uint8), np.arange(4))).source  # 800 bytes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (500, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1300)
    for allocated, fits in ((1000, True), (1001, False)):
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device, n=allocated: n)
        if fits:
            resident._check_free_memory(source, GPU)
        else:
            with pytest.raises(CacheError, match="needs 800 bytes .* which has 799"):
                resident._check_free_memory(source, GPU)


# -- on the CPU ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_converted_images_take_the_memory_of_a_batch_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, layout: torch.memory_format
) -> None:
    monkeypatch.setattr("fastload.recipe.split.BatchProgram.piece_bytes", 1)  # sample by sample
    program = Recipe.from_transform(v2.ToDtype(torch.float32)).split((64, 80)).programs[0]
    stage = DeviceStage(
        device=torch.device("cpu"),
        programs=[program],
        outputs=Outputs.of_kinds({"image": IMAGE}, "single"),
        memory_format=layout,
    )
    rng, kept, places = np.random.default_rng(0), [], []
    for number in range(6):
        images = rng.integers(0, 256, (20, 64, 80, 3), dtype=np.uint8)
        staged = stage.run(HostBatch({"image": images}), Draws(0, 0, np.arange(20)), number)
        assert staged.substituted == 0
        batch = stage.deliver(staged)
        assert batch.dtype is torch.float32
        assert batch.is_contiguous(memory_format=layout)
        assert (batch.permute(0, 2, 3, 1).numpy() == images).all()
        places.append(batch.data_ptr())
        if number % 2:
            kept.append((batch, images))
        del batch, staged
    assert len(set(places)) == len(kept)
    assert all((batch.permute(0, 2, 3, 1).numpy() == images).all() for batch, images in kept)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_images_lie_as_asked_for_where_nothing_is_done_to_them(layout: torch.memory_format) -> None:
    stage = DeviceStage(
        device=torch.device("cpu"),
        programs=[Recipe().split().batch],
        outputs=Outputs.of_kinds({"image": IMAGE}, "single"),
        memory_format=layout,
    )
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    batch = stage.deliver(stage.run(HostBatch({"image": images}), Draws(0, 0, np.arange(2)), 0))
    assert batch.is_contiguous(memory_format=layout)
    assert (batch.permute(0, 2, 3, 1).numpy() == images).all()


def test_a_dtype_is_for_images() -> None:
    stage = stage_on(torch.device("cpu"), dtype=torch.float16)
    host = HostBatch({"a": np.arange(3), "b": np.ones(3)})
    a, b = stage.deliver(stage.run(host, Draws(0, 0, np.arange(3)), 0))
    assert (a.dtype, b.dtype) == (torch.int64, torch.float64)


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_mixing_works_on_the_numbers_of_the_recipe(dtype: torch.dtype | None) -> None:
    """And only then they are rounded to the dtype to deliver. An epoch's number of the batch draws
    it, on every rank alike."""
    transform = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    program, mix = Recipe.from_transform(transform).split((6, 7)).programs[0], MixUp(num_classes=3)
    images = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)
    labels = np.arange(5) % 3
    for columns in (
        {"image": images, "label": labels},
        {"label": labels, "image": images},
    ):
        stage = DeviceStage(
            device=torch.device("cpu"),
            programs=[program],
            outputs=Outputs.of_kinds({"image": IMAGE, "label": VALUE}, "dict"),
            dtype=dtype,
            mix=mix,
        )
        made = stage.deliver(stage.run(HostBatch(columns), Draws(3, 1, np.arange(5)), 7))
        planes = torch.from_numpy(images).permute(0, 3, 1, 2)
        floats = program({"image": planes}, {"image": IMAGE}, Draws(3, 1, np.arange(5)))["image"]
        wanted = mix.apply(floats, torch.from_numpy(labels), Draws(3, 1, np.array([7])))
        assert made["image"].dtype is (dtype or torch.float32)
        assert torch.equal(made["image"], wanted[0].to(dtype or torch.float32))
        assert torch.equal(made["label"], wanted[1])


def test_a_collate_function_gets_the_columns_by_name() -> None:
    """The sizes of padded images come last."""
    seen: list[dict[Any, Any]] = []
    images, boxes = np.zeros((2, 4, 5, 3), np.uint8), np.arange(2)
    for columns in (
        {"image": images, "boxes": boxes},
        {"image": images, "boxes": boxes, SIZES: np.full((2, 2), 3)},
    ):
        stage = DeviceStage(
            device=torch.device("cpu"),
            programs=[Recipe().split().batch],
            outputs=Outputs.of_kinds(dict.fromkeys(columns, VALUE) | {"image": IMAGE}),
            collate=lambda columns: seen.append(columns) or "made",
        )
        staged = stage.run(HostBatch(columns), Draws(0, 0, np.arange(2)), 0)
        assert (staged.batch, staged.samples) == ("made", 2)
        assert list(seen[-1]) == list(columns)
        assert seen[-1]["image"].shape == (2, 3, 4, 5)
        assert seen[-1]["boxes"].tolist() == [0, 1]


def test_images_of_another_device_are_converted_there(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Recipe.from_transform(v2.ToDtype(torch.float32)).split((4, 5)).programs[0]
    stage = DeviceStage(
        device=torch.device("meta"),
        programs=[program],
        outputs=Outputs.of_kinds({"image": IMAGE}, "dict"),
    )
    host = HostBatch(
        {"image": np.zeros((2, 4, 5, 3), np.uint8), "boxes": Ragged.of([[1.0], [2.0, 3.0]])}
    )
    to, unwaited = torch.Tensor.to, list[bool]()

    def spy(tensor: torch.Tensor, *where: Any, **given: Any) -> torch.Tensor:
        unwaited.append(bool(given.get("non_blocking")))
        return to(tensor, *where, **given)

    monkeypatch.setattr(torch.Tensor, "to", spy)
    batch = stage.deliver(stage.run(host, Draws(0, 0, np.arange(2)), 0))
    assert unwaited
    assert not any(unwaited), "the memory is the next batch's before MPS or XPU have copied it"
    assert batch["image"].device.type == batch["boxes"].values.device.type == "meta"
    assert batch["image"].shape == (2, 3, 4, 5)
    assert batch["boxes"].on_host.tolist() == [0, 1, 3]


# -- which GPU -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "current", "said"), [("3", 0, True), ("3", 3, False), ("0", 0, False), ("9", 0, False)]
)
def test_a_rank_whose_batches_would_go_to_anothers_gpu_is_warned(
    cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
    rank: str,
    current: int,
    said: bool,
) -> None:
    from fastload.loader.config import LoaderConfig

    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    assert LoaderConfig(source=None, device=torch.device("cuda")).device == torch.device(
        "cuda", current
    )
    assert ("torch.cuda.set_device(3)" in caplog.text) is said
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    caplog.clear()
    assert LoaderConfig(source=None, device=torch.device("cuda")).device.index == 0
    assert not caplog.text, "a GPU of its own"
    with pytest.raises(ConfigurationError, match=r"device: 'cuda:3' .* torch sees 1 GPU,"):
        LoaderConfig(source=None, device=torch.device("cuda", 3))


@pytest.mark.parametrize("huge", [True, False])
def test_zeros_are_fresh(monkeypatch: pytest.MonkeyPatch, huge: bool) -> None:
    """Whatever was written to the ones before, also while these are kept."""
    if not huge:
        monkeypatch.setattr(host_memory, "has_huge_pages", lambda: False)
    zeros, kept = host_memory.Zeros(), []
    shapes = [(0, 5), (3, 7, 5), (2, 130, 1999), (2, 1300, 2100), (65 << 20, 1)]
    for number, shape in enumerate(shapes * 4):
        made = zeros.allocate(shape)
        assert made.shape == shape
        assert made.dtype == np.bool_
        assert made.flags.c_contiguous
        assert made.flags.writeable
        assert not made.any()
        made[:] = True  # to its last byte
        if number % 2:
            kept.append(made)
    assert all(one.all() for one in kept)
    kept[-1][:] = False
    assert all(one.all() for one in kept[:-1])
    ours = torch.from_numpy(kept[0])
    assert ours.untyped_storage().nbytes() == kept[0].nbytes, "saved without the others"


@pytest.mark.whole
@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="of Linux")
def test_large_zeros_are_of_whole_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[mmap.mmap]] = []

    class Pages(mmap.mmap):
        def __new__(cls, number: int, nbytes: int, **given: Any) -> Pages:
            pages = super().__new__(cls, number, nbytes, **given)
            made.append(weakref.ref(pages))
            return pages

    monkeypatch.setattr(host_memory.mmap, "mmap", Pages)
    monkeypatch.setattr(host_memory, "has_huge_pages", lambda: True)
    zeros, least = host_memory.Zeros(), 1 << 17
    assert zeros.allocate((least - 1,)).nbytes == least - 1
    assert not made, "malloc's"
    large = [zeros.allocate((30 << 20,)) for _ in range(3)]
    assert len(made) == 2, "two lie in one mapping"
    assert all(one.ctypes.data % (2 << 20) == 0 for one in large)
    assert large[1].ctypes.data == large[0].ctypes.data + (30 << 20)
    del large[0]
    assert made[0]() is not None
    del large[0]
    gc.collect()
    assert made[0]() is None, "the memory was given back"
    zeros.allocate((least,))
    assert len(made) == 2
    monkeypatch.setattr(host_memory, "has_huge_pages", lambda: False)
    zeros.allocate((70 << 20,))
    assert len(made) == 2


def test_huge_pages_are_asked_of_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "enabled"
    assert not host_memory.has_huge_pages(str(setting))
    for text, there in (("always [madvise] never", True), ("always madvise [never]", False)):
        setting.write_text(text)
        host_memory.has_huge_pages.cache_clear()
        assert host_memory.has_huge_pages(str(setting)) == (
            there and hasattr(mmap, "MADV_HUGEPAGE")
        )
    host_memory.has_huge_pages.cache_clear()
    setting.write_text("[always] madvise never")
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert not host_memory.has_huge_pages(str(setting)), "this Python cannot ask for them"
    host_memory.has_huge_pages.cache_clear()


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_some_samples_of_a_batch_keep_its_memory_format(dtype: torch.dtype, last: bool) -> None:
    images = torch.arange(5 * 3 * 4 * 6).reshape(5, 3, 4, 6).to(dtype)
    if last:
        images = images.contiguous(memory_format=torch.channels_last)
    before, rows = images.clone(), np.array([4, 1])
    some = transfer.taken(images, rows)
    assert torch.equal(some, images[[4, 1]])
    assert some.stride() == images.stride()
    for changed in (some + 1, (some + 1).contiguous()):
        made = transfer.replaced(images, rows, changed)
        assert torch.equal(made[[4, 1]], some + 1)
        assert torch.equal(made[[0, 2, 3]], before[[0, 2, 3]])
        assert torch.equal(images, before)
    masks = images[:, 0]
    assert torch.equal(
        transfer.replaced(masks, rows, transfer.taken(masks, rows) + 1)[1], masks[1] + 1
    )
