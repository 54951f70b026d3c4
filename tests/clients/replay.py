"""Plays the scripts of `tests/clients/cases.py` twice, with a plain DataLoader and with the line
`loader = fastload.from_dataloader(loader)`, and says where they differ.

    python -m tests.clients.replay NAME...     named cases; "FRAMEWORK RANKS NUMBER": a random one

One process imports a framework, and forks the ranks, which play all cases of a group.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import fastload
from fastload.compat.handover import inner_of
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.loader import Loader
from tests import warm
from tests.clients.cases import CHANGES, NAMED, OF_ORDER, Case, Made, made, random_case
from tests.clients.processes import run_cold
from tests.waiting import LIMIT

Events = list[Any]
"""What happened in one rank, of numbers, words and lists."""
WHOLE = 1000.0
"""Seconds for a group of cases in a framework. They only end a hang."""
_PR_SET_PDEATHSIG = 1
MODULES = {
    "accelerate": "accelerate.data_loader",
    "lightning": "lightning",
    "trainer": "transformers.trainer",
}
"""What is imported before the ranks are forked."""
ERRORS = 3
"""Errors in an epoch after which a script gives up."""

# -- Playing ---------------------------------------------------------------------------------------


def play(case: Case, rank: int, *, line: bool) -> Events:
    """`line`: with that of fastload."""
    events: Events = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            PLAYERS[case.framework](Script(case, rank, line, events))
    except Exception as error:
        events.append(said(error))
    if case.workers:
        gc.collect()  # iterators that would be copied into the next worker processes
    return json.loads(json.dumps(events))  # type: ignore[no-any-return]


def said(error: Exception) -> list[str]:
    if isinstance(error, ConfigurationError | StateMismatchError):
        return ["refused", str(error)]
    text = str(error)
    if text.startswith("Caught"):  # of a worker process: as its traceback ends
        text = text.strip().splitlines()[-1].partition(": ")[2]
    return ["error", type(error).__name__, text[:30]]


def shown(batch: Any) -> Any:
    """A batch as numbers and words."""
    if isinstance(batch, torch.Tensor):
        if batch.is_meta or batch.is_nested:
            return [
                "tensor",
                "meta" if batch.is_meta else "nested",
                str(batch.dtype),
                len(batch.shape),
            ]
        return [str(batch.dtype).removeprefix("torch."), batch.tolist()]
    if isinstance(batch, dict):
        return {name: shown(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [type(batch).__name__, *map(shown, batch)]
    return batch if batch is None or isinstance(batch, int | str) else type(batch).__name__


class Script:
    """A case under way in one rank."""

    def __init__(self, case: Case, rank: int, line: bool, events: Events) -> None:
        self.case, self.rank, self.line, self.events = case, rank, line, events
        self.changed = False
        self.start()

    def start(self) -> None:
        torch.manual_seed(17 + (self.rank if self.case.apart else 0))
        self.made: Made = made(self.case, self.rank)

    def adopted(self, loader: Any) -> Any:
        return fastload.from_dataloader(loader) if self.line else loader

    def check(self, loader: Any) -> None:
        """It, or what it is put around, is a Loader of fastload's."""
        inner = inner_of(loader)
        kind = type(loader if inner is None else inner)
        if self.line and kind is not Loader:
            raise AssertionError(f"batches come from a {kind.__name__}")

    def prepared(self, prepare: Callable[[Any], Any]) -> Any:
        """By a framework, and adopted before or after."""
        if self.case.adopt == "first":
            return prepare(self.adopted(self.made.loader))
        return self.adopted(prepare(self.made.loader))

    def note(self, *event: Any) -> None:
        self.events.append(list(event))

    def describe(self, loader: Any) -> None:
        """What it looks like."""
        mine = self.made
        own = {"sampler": mine.sampler, "dataset": mine.data, "generator": mine.generator}
        names = [name for name, value in own.items() if getattr(loader, name) is value]
        self.note("is", isinstance(loader, DataLoader), *names, getattr(loader, "mosaic", None))
        self.note("sizes", loader.batch_size, loader.drop_last, loader.num_workers)

    def before(self, epoch: int, loader: Any) -> None:
        """What the script does before it iterates."""
        case = self.case
        if epoch and case.when == "between":
            self.change(loader)
        if case.generator == "reseeded" and self.made.generator is not None:
            self.made.generator.manual_seed(1000 + epoch)
        if case.sets_epoch:
            owner = loader if hasattr(loader, "set_epoch") and case.kind == "epochs" else None
            owner = owner or (
                self.made.sampler if hasattr(self.made.sampler, "set_epoch") else None
            )
            if owner is not None:
                owner.set_epoch(epoch)

    def change(self, loader: Any) -> None:
        if not self.changed:
            self.changed = True
            for name in self.case.changes:
                try:
                    CHANGES[name](self.made, loader, self.case.count)
                except Exception as error:
                    self.note(*said(error))
                if name == "attribute":
                    self.note("attribute", getattr(loader, "mine", None))

    def measure(self, loader: Any) -> None:
        try:
            self.note("length", len(loader))
        except TypeError:
            self.note("length", "none")


def loop(
    script: Script, loader: Any, *, after: Callable[[Any], Iterable[Any]] = lambda _: ()
) -> None:
    """A script's own loop; `after` each batch there is something to note."""
    case = script.case
    script.check(loader)
    script.describe(loader)
    for epoch in range(case.epochs):
        script.before(epoch, loader)
        script.note("epoch", epoch)
        script.measure(loader)
        try:
            iterator = iter(loader)
        except Exception as error:
            script.note(*said(error))
            return
        step = errors = 0
        while errors < ERRORS:
            if epoch == 0 and case.leave and step == case.leave:
                break
            if script.line and (epoch, step) == case.resume:
                loader, iterator = resumed(script, loader)
            try:
                batch = next(iterator)
            except StopIteration:
                break
            except Exception as error:
                script.note(*said(error))
                errors += 1
                continue
            script.note("batch", shown(batch), *after(batch))
            step += 1
            if epoch == 0 and case.when == "within":
                script.change(loader)


def resumed(script: Script, loader: Any) -> tuple[Any, Any]:
    """The loader of a script that was started again, and its iterator, at the place where this one
    is."""
    epoch, _ = script.case.resume or (0, 0)
    state = loader.state_dict()
    script.start()
    again = script.adopted(script.made.loader)
    again.load_state_dict(state)
    script.before(epoch, again)
    return again, iter(again)


# -- Frameworks ------------------------------------------------------------------------------------


def alone(script: Script) -> None:
    loop(script, script.adopted(script.made.loader))


def accelerate(script: Script) -> None:
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.data_loader import prepare_data_loader

    case = script.case
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**case.options))
    prepare: Callable[[Any], Any] = accelerator.prepare
    if case.mode in ("tp", "cp"):
        mesh = torch.distributed.device_mesh.init_device_mesh(
            "cpu", (2, 2), mesh_dim_names=("dp_shard", case.mode)
        )

        def prepare(loader: Any) -> Any:
            return prepare_data_loader(loader, torch_device_mesh=mesh)
    elif case.mode == "function":

        def prepare(loader: Any) -> Any:
            return prepare_data_loader(loader, even_batches=False, rng_types=["torch"])

    loader = script.prepared(prepare)

    def after(batch: Any) -> Iterable[Any]:
        state = accelerator.gradient_state
        yield state.end_of_dataloader
        yield state.remainder if state.end_of_dataloader else None
        even = case.options.get("even_batches", True) and case.batches in ("size", "torch")
        even = even and not {*case.changes} & OF_ORDER
        if even and case.mode in ("", "skip"):  # else batches differ in size among the ranks
            yield shown(accelerator.gather_for_metrics(batch))

    for name in ("total_batch_size", "total_dataset_length", "rng_types", "remainder"):
        try:
            script.note(name, str(getattr(loader, name)))
        except Exception as error:
            script.note(name, type(error).__name__)
    loop(script, loader, after=after)
    if case.mode == "skip":
        skipped = accelerator.skip_first_batches(loader, 1)
        script.check(skipped)
        script.measure(skipped)
        for batch in skipped:
            script.note("batch", shown(batch), *after(batch))


def lightning(script: Script) -> None:
    import lightning as L
    from lightning.pytorch.callbacks import BasePredictionWriter

    case = script.case

    class Module(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def on_train_epoch_start(self) -> None:
            script.note("epoch", self.current_epoch)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            script.check(self.trainer.train_dataloader)
            script.note("batch", shown(batch), self.trainer.is_last_batch)
            return self.weight.sum() * 0

        def validation_step(self, batch: Any, index: int) -> None:
            script.check(self.trainer.val_dataloaders)
            script.note("batch", shown(batch))

        def predict_step(self, batch: Any, index: int) -> torch.Tensor:
            script.check(self.trainer.predict_dataloaders)
            script.note("batch", shown(batch))
            return self.weight

        def on_train_epoch_end(self) -> None:
            if self.current_epoch == 0:
                script.change(self.trainer.train_dataloader)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.0)

    class Writer(BasePredictionWriter):  # type: ignore[misc]
        def write_on_batch_end(
            self, trainer: Any, module: Any, made: Any, indices: Any, *others: Any
        ) -> None:
            script.note("indices", shown(indices))

        def write_on_epoch_end(self, trainer: Any, module: Any, made: Any, indices: Any) -> None:
            script.note("all indices", shown(indices))

    module = Module()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=case.ranks,
        strategy="ddp" if case.ranks > 1 else "auto",
        max_epochs=case.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Writer("batch_and_epoch")] if case.mode == "predict" else [],
    )
    loader = script.made.loader
    if case.adopt == "first":
        loader = script.adopted(loader)
    elif script.line:  # the loader of Lightning's strategy, as it is made last
        process = trainer.strategy.process_dataloader
        trainer.strategy.process_dataloader = lambda made: process(script.adopted(made))
    getattr(trainer, case.mode or "fit")(module, loader)
    if not case.mode:
        script.note("length", trainer.num_training_batches)


def trainer(script: Script) -> None:
    from transformers import Trainer, TrainingArguments
    from transformers.utils import logging

    case = script.case
    logging.set_verbosity_error()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, rows: torch.Tensor, tag: torch.Tensor) -> dict[str, torch.Tensor]:
            script.note("batch", shown(rows), shown(tag))
            return {"loss": self.weight.sum() * 0}

    class Ours(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            if case.mode == "super":
                return script.adopted(super().get_train_dataloader())
            return script.prepared(self.accelerator.prepare)

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return script.made.sampler

    with tempfile.TemporaryDirectory() as folder:
        trainer = Ours(
            model=Model(),
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=case.size,
                num_train_epochs=case.epochs,
                max_steps=5 if case.data == "stream" else -1,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                remove_unused_columns=False,
                dataloader_drop_last=case.drop_last,
                dataloader_pin_memory=False,
                seed=3,
            ),
            train_dataset=script.made.data,
            data_collator=script.made.loader.collate_fn,
        )
        trainer.train()
        script.check(trainer.callback_handler.train_dataloader)
        script.note("steps", trainer.state.global_step)


def ray(script: Script) -> None:
    from ray.train.torch import prepare_data_loader

    loop(script, script.prepared(prepare_data_loader))


PLAYERS: dict[str, Callable[[Script], None]] = {
    "none": alone,
    "accelerate": accelerate,
    "lightning": lightning,
    "trainer": trainer,
    "ray": ray,
}


# -- Comparing -------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[Case], bool], str]] = [
    (lambda case: case.kind == "iterating", "overrides __iter__"),
    # Sizes of Accelerate's BatchSamplerShard are not those of the sampler in it.
    (lambda case: "size" in case.changes and case.framework == "accelerate", "but gave"),
]
"""Documented refusals: of which cases, and what the message has."""


def difference(case: Case, plain: list[Events], ours: list[Events]) -> str:
    """Of the events of all ranks; empty: there is none."""
    for rank, events in enumerate(ours):
        refusals = [event[1] for event in events if event[0] == "refused"]
        if refusals:
            for applies, words in REFUSED:
                if applies(case) and words in refusals[0]:
                    return ""
            return f"rank {rank} refuses: {refusals[0]}"
    if ours == plain:
        return ""
    if order_is_ours(case) or draws_are_ours(case):
        return _difference_in_another_order(case, plain, ours)
    return _first_difference(plain, ours)


def order_is_ours(case: Case) -> bool:
    """Whether fastload's own order may stand for that of torch's shuffle."""
    if case.sampler in ("random", "shuffle"):
        return case.generator != "reseeded"
    if case.framework == "lightning" and case.ranks > 1:  # it puts a DistributedSampler in
        replaced = ("none", "sequential", "replacement")  # torch's, with replacement or without
        if case.sampler in replaced or case.batches == "torch":
            return True
    return case.sampler == "distributed" or (case.framework == "ray" and case.ranks > 1)


def comes_singly(case: Case) -> bool:
    """Whether samples are handed out one by one. Lightning, which puts a DistributedSampler into a
    BatchSampler of torch's, keeps the DataLoader's batch_size, which is None then."""
    by_lightning = case.framework == "lightning" and case.ranks > 1
    return case.batches == "none" or (by_lightning and case.batches == "torch")


def draws_are_ours(case: Case) -> bool:
    """Whether the samples of torch's random samplers may follow from fastload's seed: where they
    have no generator, and no framework gives them one, as Accelerate does where each of several
    ranks reads its own samples."""
    drawn = case.sampler in ("replacement", "weighted", "some") and case.generator == "none"
    apart = case.ranks > 1 and not case.options.get("dispatch_batches")
    return drawn and (case.framework == "none" or not apart)


def _first_difference(plain: list[Events], ours: list[Events]) -> str:
    for rank, (wanted, found) in enumerate(zip(plain, ours, strict=True)):
        for place in range(max(len(wanted), len(found))):
            one, other = ([*events, *["(nothing)"] * 1000][place] for events in (wanted, found))
            if one != other:
                both = f"plain {str(one)[:300]}, fastload {str(other)[:300]}"
                return f"rank {rank}, event {place}: {both}"
    return "another number of ranks"


def _in_order(event: Any, samples: list[Any], *, single: bool) -> Any:
    """An event without its samples, which are collected. `single`: they come one by one."""
    if isinstance(event, list) and len(event) == 2 and event[0] in ("int64", "int32"):
        rows = event[1] if isinstance(event[1], list) else []
        if single and rows and not isinstance(rows[0], list):
            rows = [rows]
        if rows and isinstance(rows[0], list):
            samples += [tuple(each) for each in rows]
            return len(rows)
        return event
    if isinstance(event, list):
        return [_in_order(each, samples, single=single) for each in event]
    if isinstance(event, dict):
        return {
            name: _in_order(each, samples, single=single and name != "tag")
            for name, each in event.items()
        }
    return event


def _difference_in_another_order(case: Case, plain: list[Events], ours: list[Events]) -> str:
    """The same events but for the order of samples within an epoch, over all ranks; of each rank
    where each has an order of its own."""
    shapes: list[Any] = []
    epochs: list[list[Counter[Any]]] = []
    apart = case.framework == "none" and "distributed" not in case.sampler
    for ranks in (plain, ours):
        samples: dict[tuple[int, int], list[Any]] = {}
        kept = []
        for rank, events in enumerate(ranks):
            epoch, own = 0, []
            for event in events:
                epoch += event[0] == "epoch"
                # What Accelerate has gathered is the same once more.
                rows = samples.setdefault((epoch, rank if apart else 0), [])
                own.append(_in_order(event[:4], rows, single=comes_singly(case)))
            kept.append(own)
        shapes.append(kept)
        epochs.append([Counter(each) for _, each in sorted(samples.items())])
    if shapes[0] != shapes[1]:
        return _first_difference(*shapes)
    for epoch, (wanted, found) in enumerate(zip(*epochs, strict=True)):  # and rank, if `apart`
        if draws_are_ours(case) and case.sampler != "some":
            continue
        if sorted(wanted.values()) != sorted(found.values()):
            return f"epoch {epoch}: samples come {found}, with the plain loader {wanted}"
        if len(wanted) >= case.count and set(wanted) != set(found):
            return f"epoch {epoch}: other samples: {set(wanted) ^ set(found)}"
        # Without the random numbers of `cases.Random`, which are those of a sample.
        if {each[1:4] for each in wanted} != {each[1:4] for each in found}:
            return f"epoch {epoch}: of other types: {found}, with the plain loader {wanted}"
    return ""


# -- In processes ----------------------------------------------------------------------------------


def differences(cases: list[Case]) -> dict[str, str]:
    """The differences of each case, by name; without those that have none. The cases have one
    framework and one number of ranks."""
    framework, ranks = cases[0].framework, cases[0].ranks
    if framework == "none" and ranks == 1:
        played = [[[play(case, 0, line=line)] for line in (False, True)] for case in cases]
    else:
        played = _played(framework, ranks, cases)
    found = {case.name: difference(case, *both) for case, both in zip(cases, played, strict=False)}
    if len(played) < len(cases):
        found[cases[len(played)].name] = "it did not end"
    return {name: text for name, text in found.items() if text}


def _played(framework: str, ranks: int, cases: list[Case]) -> list[Any]:
    """For each case the events of both plays, of each rank, up to one that did not end."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "cases").write_text(json.dumps([asdict(case) for case in cases]))
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            if framework == "ray":  # which starts processes in ways of its own
                run_cold("replay.py", framework, str(ranks), folder, timeout=WHOLE)
            else:
                done = warm.run(
                    __file__,
                    *(framework, str(ranks), folder),
                    directory=Path(__file__).parents[2],
                    environment={"OMP_NUM_THREADS": "1"},
                    timeout=WHOLE if framework != "none" else LIMIT,
                )
                assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        played: list[Any] = []
        for number in range(len(cases)):
            files = [Path(folder, f"{number}.{rank}") for rank in range(ranks)]
            if not all(file.exists() for file in files):
                break
            both = [json.loads(file.read_text()) for file in files]
            played.append([[rank[way] for rank in both] for way in (0, 1)])
        return played


def main(framework: str, ranks: int, folder: str) -> None:
    """Play the cases of a folder."""
    if framework == "ray":
        _in_ray(ranks, folder)
        return
    if framework != "none":
        importlib.import_module(MODULES[framework])
    children = {
        _forked(framework, rank, variables, folder)
        for rank, variables in enumerate(warm.ranks(ranks))
    }
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            for other in children:  # which may wait for it
                os.kill(other, signal.SIGKILL)
            sys.exit(f"a rank ended with status {status}")


def _in_ray(ranks: int, folder: str) -> None:
    import ray as library
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    def train(config: dict[str, Any]) -> None:
        from ray.train import get_context

        from tests.clients import replay

        replay.play_all(config["folder"], get_context().get_world_rank())

    library.init(
        "local",  # no cluster that somebody else has started here
        num_cpus=ranks + 1,
        include_dashboard=False,
        object_store_memory=100 << 20,
    )
    TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=ranks, use_gpu=False),
        run_config=RunConfig(storage_path=folder),
    ).fit()


def play_all(folder: str, rank: int) -> None:
    """Play the cases of a folder in this process, which is a rank."""
    for number, values in enumerate(json.loads(Path(folder, "cases").read_text())):
        values["changes"] = tuple(values["changes"])
        values["resume"] = values["resume"] and tuple(values["resume"])
        _play_into(Case(**values), number, rank, folder)


def _forked(framework: str, rank: int, variables: Mapping[str, str], folder: str) -> int:
    """A process that is a rank, and ends with this one."""
    if child := os.fork():
        return child
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.environ.update(variables, TORCHELASTIC_RUN_ID="replay", GROUP_RANK="0")
        os.environ.update(LOCAL_WORLD_SIZE=variables["WORLD_SIZE"], ROLE_RANK=str(rank))
        if framework == "none":
            torch.distributed.init_process_group("gloo")
        play_all(folder, rank)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def _play_into(case: Case, number: int, rank: int, folder: str) -> None:
    both = [play(case, rank, line=line) for line in (False, True)]
    part = Path(folder, f"part {number}.{rank}")
    part.write_text(json.dumps(both))
    part.rename(Path(folder, f"{number}.{rank}"))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[2].isdecimal() and Path(sys.argv[3]).is_dir():
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        for name in sys.argv[1:]:
            if name not in NAMED:
                framework, ranks, number = name.split()
            case = NAMED[name] if name in NAMED else random_case(int(number), framework, int(ranks))
            print(case)
            print(" ", differences([case]).get(case.name) or "no difference")
