"""`fastload watch`: the verdict's rules, what is kept, a command that is run and looked at, and the
page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastload.errors import ConfigurationError
from fastload.tools.watch.record import GpuMoment, GpuTotals, Moment, Watched, merged, read_watched
from fastload.tools.watch.report import closing, line
from fastload.tools.watch.verdict import verdict, verdict_of_shares
from tests.waiting import LIMIT

ROOT = Path(__file__).parents[1]

FAKE_NVML = """
import os
NVML = True
class NVMLError(Exception): pass
class _Of:
    def __init__(self, **given): self.__dict__.update(given)
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return b"Simulated"
def _answer(name):
    try: return open(os.path.join(os.environ["FAKE_GPUS"], name)).read()
    except OSError: return ""
def nvmlDeviceGetUtilizationRates(handle): return _Of(gpu=int(_answer(f"use{handle}") or 0))
def nvmlDeviceGetMemoryInfo(handle): return _Of(used=(handle + 1) * 1000000000)
def nvmlDeviceGetComputeRunningProcesses(handle):
    return [_Of(pid=int(pid)) for pid in _answer(f"pids{handle}").split()]
"""


def moment(*shares: float | None, **given: Any) -> Moment:
    """A second, in which nothing but the GPUs worked."""
    usual: dict[str, Any] = {
        "at": 1.0,
        "seconds": 1.0,
        "feeder": 0.0,
        "others": 0.0,
        "foreign": 0.0,
        "read": 0.0,
    }
    usual |= {
        "feeder_queued": 0.0,
        "queued": 0.0,
        "cached": 0.0,
        "written": 0.0,
        "received": 0.0,
        "memory": 10,
        "page_cache": 20,
    }
    return Moment(gpus=tuple(GpuMoment(share, 5) for share in shares), **{**usual, **given})


def seen(*moments: Moment, cores: int = 8, processes: int = 1) -> Watched:
    watched = Watched(
        "train.py", cores, [GpuTotals(f"GPU {n}") for n in range(len(moments[0].gpus))]
    )
    watched.gpu_processes = processes
    for number, found in enumerate(moments):
        watched.add(
            Moment(
                **{
                    **{name: getattr(found, name) for name in found.__struct_fields__},
                    "at": number + 1.0,
                }
            )
        )
    return watched


# -- The verdict -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moments", "cause", "words", "change"),
    [
        ([moment(0.97), moment(0.93)], "computing", "used 95% of the time", "a loader cannot"),
        (
            [moment(0.9), moment(0.0, others=3.0)],
            "data",
            "all else of the script 3.0 of 8 cores",
            "num_workers=8",
        ),
        (
            [moment(0.9), moment(0.0, others=0.1, queued=0.9)],
            "data",
            "it was ready to use 1.0",
            "num_workers=8",
        ),
        ([moment(0.0, others=7.5)], "data", "The cores are full", "from_dataloader"),
        ([moment(0.0, read=5e7)], "data", "50.0 MB/s came from storage", "cache"),
        ([moment(0.0, received=2e7)], "data", "20.0 MB/s over the network", "reads once"),
        (
            [moment(0.1, feeder=0.95)],
            "host",
            "95% of a core: it waits for the host",
            "torch.compile",
        ),
        ([moment(0.1, feeder=0.95, cached=3e7)], "data", "num_workers=0", "from_dataloader"),
        (
            [moment(0.1, feeder=0.95, cached=3e7, others=2.0)],
            "host",
            "it waits for the host",
            "torch.compile",
        ),
        (
            [moment(0.0, 1.0), moment(0.9, 0.9)],
            "gradients",
            "as DataParallel does",
            "DistributedDataParallel",
        ),
        ([moment(0.0)], "unknown", "is not known", ""),
        ([moment(0.6)], "unknown", "cannot be distinguished from outside", ""),
        (
            [moment(None, others=1.5)],
            "no GPU",
            "whether a device waited is not known. The script took 1.5",
            "",
        ),
    ],
)
def test_the_verdict_follows_from_what_worked_meanwhile(
    moments: list[Moment], cause: str, words: str, change: str
) -> None:
    found = verdict(seen(*moments))
    assert found.cause == cause, found.words
    assert words in found.words
    assert change in found.change
    assert bool(found.change) == (cause not in ("unknown", "no GPU")), (
        "no advice where nothing is known"
    )


def test_ranks_that_wait_for_each_other_are_is_measurable_from_dataparallel() -> None:
    found = verdict(seen(moment(0.0, 1.0), processes=2))
    assert found.cause == "gradients"
    assert "a process a GPU" in found.words
    assert "no_sync" in found.change


def test_others_that_disturb_are_named() -> None:
    assert (
        "Other processes took 4.0 of the 8 cores"
        in verdict(seen(moment(0.0, others=2.0, foreign=4.0))).words
    )
    assert "Other processes" not in verdict(seen(moment(0.0, others=2.0, foreign=1.0))).words


def test_a_gpu_that_is_not_used_by_the_script_does_not_count() -> None:
    idle = Moment(
        **{
            name: getattr(moment(0.99), name) for name in Moment.__struct_fields__ if name != "gpus"
        },
        gpus=(GpuMoment(0.99, 5), GpuMoment(0.0, 5, used=False)),
    )
    assert verdict(seen(idle)).cause == "computing"


def test_a_trainer_that_marks_its_phases_is_read_exactly() -> None:
    assert verdict_of_shares({"compute": 0.5, "update": 0.05, "wait": 0.45}).cause == "data"
    assert "--compile" in verdict_of_shares({"compute": 0.5, "launch": 0.5}).change
    assert (
        "waited 30.0% for gradients" in verdict_of_shares({"compute": 0.7, "exchange": 0.3}).words
    )
    assert verdict_of_shares({"compute": 0.95, "wait": 0.05}).cause == "computing"


# -- What is kept ----------------------------------------------------------------------------------


def test_windows_at_zero_are_counted_over_moments() -> None:
    watched = seen(*map(moment, (0.5, 0.0, 0.0, 0.7, 0.0)))
    (gpu,) = watched.gpus
    assert (gpu.idle_windows, gpu.idle_seconds, gpu.longest_idle_seconds) == (2, 3.0, 2.0)
    assert gpu.busy_share == pytest.approx(1.2 / 5)
    assert "at 0% 2 times" in line(watched, 0.0)


@pytest.mark.whole
def test_a_run_that_never_ends_takes_no_more_memory() -> None:
    watched = Watched("x", 2, [GpuTotals("GPU 0")])
    for number in range(20_000):
        watched.add(
            Moment(
                **{
                    **{n: getattr(moment(0.25, others=1.5), n) for n in Moment.__struct_fields__},
                    "at": number + 1.0,
                }
            )
        )
    assert len(watched.moments) <= 4096
    assert sum(found.seconds for found in watched.moments) == pytest.approx(20_000)
    assert watched.moments[0].others == pytest.approx(1.5)
    assert watched.gpus[0].busy_share == pytest.approx(0.25)


def test_moments_merge_by_their_length() -> None:
    long = merged(
        moment(0.0, read=None, others=1.0), merged(moment(1.0, read=3.0), moment(1.0, read=3.0))
    )
    assert long.seconds == 3
    assert long.gpus[0].utilisation == pytest.approx(2 / 3)
    assert (long.others, long.read) == (pytest.approx(1 / 3), 3.0)


def test_what_was_seen_survives_the_file(tmp_path: Path) -> None:
    watched = seen(moment(0.5, None, read=None))
    watched.write(tmp_path / "w.json")
    assert read_watched(tmp_path / "w.json") == watched
    (tmp_path / "w.json").write_text("{}")
    with pytest.raises(
        ConfigurationError, match=r"w\.json: not written by `fastload watch --json`"
    ):
        read_watched(tmp_path / "w.json")


# -- Running ---------------------------------------------------------------------------------------


def start(
    *command: str, folder: Path, options: tuple[str, ...] = ("--no-html",), **environment: str
) -> Any:
    (folder / "pynvml.py").write_text(FAKE_NVML)
    paths = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fastload",
            "watch",
            "--period",
            "0.2",
            "--every",
            "0.4",
            *options,
            *command,
        ],
        env={**os.environ, "PYTHONPATH": paths, "FAKE_GPUS": str(folder), **environment},
        stdin=subprocess.PIPE,  # that of the tests may be closed, and its number another file's
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.whole
def test_exit_code_output_and_options_pass_through(tmp_path: Path) -> None:
    script = (
        "import sys; print(sys.argv[1:], sys.stdin.read(), flush=True); print('err', "
        "file=sys.stderr); sys.exit(7)"
    )
    for dashes in ((), ("--",)):
        process = start(*dashes, sys.executable, "-c", script, "--every", "--help", folder=tmp_path)
        out, err = process.communicate("", timeout=LIMIT)
        assert process.returncode == 7, err
        assert out == "['--every', '--help'] \n"
        assert "err" in err
        assert "ended with exit code 7" in err


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_passes_to_the_script_and_its_end_back(
    number: signal.Signals, tmp_path: Path
) -> None:
    script = (
        f"import signal, sys, time; signal.signal({int(number)}, lambda *a: sys.exit(33)); "
        "print('ready', flush=True)"
    )
    process = start(sys.executable, "-c", script + "\nwhile True: time.sleep(0.1)", folder=tmp_path)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 33
    process = start(
        sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})", folder=tmp_path
    )
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == -number, err
    assert f"ended by signal {int(number)} ({number.name})" in err


@pytest.mark.whole
def test_a_script_that_is_killed_and_what_it_leaves_behind(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], "
        "stdout=subprocess.DEVNULL,"
        " stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True); time.sleep(1.5); os.kill(os.getpid(), 9)"
    )
    process = start(sys.executable, "-c", script, folder=tmp_path)
    out, err = process.communicate(timeout=LIMIT)
    try:
        assert process.returncode == -9, err
        assert "ended by signal 9 (SIGKILL), as the system does when memory runs out" in err
        assert f"still running: {int(out)}" in err
    finally:
        os.kill(int(out), signal.SIGKILL)


@pytest.mark.whole
def test_what_cannot_be_started_or_is_missing_is_said(tmp_path: Path) -> None:
    for given, words in (
        (
            ["nowhere-to-be-found"],
            "nowhere-to-be-found: cannot be started (",  # or no permission, by a folder of PATH
        ),
        ([], "nothing to watch: fastload watch -- python train.py"),
        (["--html", "/nowhere/a.html", "x"], "/nowhere/a.html: there is no folder /nowhere"),
    ):
        process = start(*given, folder=tmp_path, options=())
        _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 1
        assert words in err


SCRIPT = """
import os, subprocess, sys, time
answers = os.environ["FAKE_GPUS"]
def tell(name, words):
    open(os.path.join(answers, name + ".part"), "w").write(str(words))
    os.replace(os.path.join(answers, name + ".part"), os.path.join(answers, name))
tell("pids1", os.getpid())
work = "import time\\nend = time.time() + 60\\nwhile time.time() < end: sum(range(1000))"
workers = [subprocess.Popen([sys.executable, "-c", work]) for _ in range(2)]
for turn in range(10):
    tell("use1", 0 if turn % 2 else 30)
    time.sleep(0.5)
for worker in workers:
    worker.kill()
"""


@pytest.mark.whole
def test_a_trainer_whose_workers_are_slow_waits_for_data(tmp_path: Path) -> None:
    """A GPU that is simulated by the driver's answers; processes beside it that work as loaders
    do."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = start(
        sys.executable,
        str(tmp_path / "train.py"),
        folder=tmp_path,
        options=("--json", str(tmp_path / "w.json"), "--no-html"),
    )
    _, err = done.communicate(timeout=LIMIT)
    assert done.returncode == 0, err
    watched = read_watched(tmp_path / "w.json")
    assert [gpu.used for gpu in watched.gpus] == [False, True]
    assert watched.gpus[1].idle_windows >= 2
    assert watched.gpus[1].peak_memory == 2_000_000_000
    assert max(found.processes for found in watched.moments) == 3
    assert verdict(watched).cause == "data", verdict(watched).words
    assert "GPU 1" in err
    assert "it waits for data" in err
    assert "To change: " in err


def test_fastload_train_keeps_what_it_saw(tmp_path: Path) -> None:
    import io

    from fastload.tools.monitor import IdleSummary
    from fastload.train import CheckpointConfig, TrainConfig
    from fastload.train.log import RunLog

    console = Console(file=io.StringIO(), width=200)
    idle = IdleSummary(9, 0.5, 0.0, 0.0, 0.0, 0.4, 0.1, 0.0, (), 0, 0)
    with RunLog(
        TrainConfig(checkpoint=CheckpointConfig(out=str(tmp_path))),
        "images",
        rank=0,
        records=[],
        step=0,
        console=console,
    ) as log:
        log.conclude(idle)
    watched = read_watched(tmp_path / "watch.json")
    assert watched.verdict == "The device was busy 50.0% of the time and waited 50.0% for data."
    assert watched.moments
    assert watched.moments[0].memory > 1e6
    assert isinstance(console.file, io.StringIO)
    assert f"{watched.verdict} To change: --tune" in console.file.getvalue()


# -- The page --------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="needs matplotlib: pip install .[report]"
)
def test_the_page_has_the_verdict_first_and_a_strip_for_each_thing(tmp_path: Path) -> None:
    from fastload.tools.watch.report import write_html

    watched = seen(
        *(moment(0.9 * (n % 2), others=3.0, read=1e6 * n, feeder=0.1) for n in range(12))
    )
    watched.ended, (_, watched.verdict, watched.change) = "ended with exit code 0", verdict(watched)
    assert any("at 0% 6 times" in words for words in closing(watched))
    write_html(watched, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert '<p class="verdict">The GPU was used 45% of the time' in text
    assert "<code>DataLoader(..., num_workers=8)" in text
    for strip in (
        "GPU 0",
        "queues work",
        "rest of the script, of 8 cores",
        "storage, of 11.0 MB/s",
    ):
        assert strip in text, strip
    assert "seconds since the start" in text
    assert "network, " not in text, "nothing came over it"
