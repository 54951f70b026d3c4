"""A contestant in a process of its own, whose `import` statements see other packages than ours."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from fastload.bench.decode.passes import PassRunner, Pixels
from fastload.bench.decode.steps import PillowStep
from fastload.bench.decode.task import Place, Task
from fastload.bench.recording import Work
from fastload.bench.resources import peak_memory, reset_peak_memory, resident_memory
from fastload.errors import WorkerError

__all__ = ["RemotePillow"]


class RemotePillow:
    """`PassRunner` around `PillowStep`, in a process that finds packages first in the given folders."""

    def __init__(self, task: Task, folders: Sequence[Path], *, known: Mapping[str, float | None] | None = None) -> None:
        package_root = str(Path(__file__).parents[3])
        paths = [*map(str, folders), package_root, os.environ.get("PYTHONPATH", "")]
        # A session of its own: Ctrl-C is for the parent, which then closes the pipe, and the process ends with it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fastload.bench.decode.remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,
        )
        try:
            self.version: str = self._ask("open", task, dict(known or {}))
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> Work:
        work: Work = self._ask("run", seconds)
        return work

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        """What the step makes of an image. Raises ValueError."""
        pixels: Pixels = self._ask("pixels", data, size, place)
        return pixels

    def close(self) -> None:
        """End the process. It holds nothing that has to be put away, so that it need not finish its pass."""
        self._process.terminate()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # it ended before it read what was left in the buffer
                pipe.close()
        self._process.wait()

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            answer, value = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerError(
                f"The process that measures Pillow-SIMD ended with exit code {self._process.poll()}; its own words are "
                "above. Build it anew (delete its folder under the cache), or leave it out of --decoders."
            ) from error
        if answer == "damaged":
            raise ValueError(value)
        return value


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """The other side: one request after the other, until the pipe is closed."""
    runner: PassRunner | None = None
    before = 0
    while True:
        try:
            verb, *arguments = pickle.load(requests)
        except EOFError:
            break
        answer: tuple[str, Any]
        if verb == "open":
            import PIL

            task, known = arguments
            reset_peak_memory()
            before = resident_memory()
            runner = PassRunner(task, PillowStep(), known=known)
            answer = ("ok", PIL.__version__)
        elif verb == "run":
            assert runner is not None
            work = runner.run(*arguments)
            peak = peak_memory()
            answer = ("ok", replace(work, peak_memory=peak, memory_growth=peak - before))
        else:
            assert runner is not None
            try:
                answer = ("ok", runner.pixels(*arguments))
            except (ValueError, OSError) as error:
                answer = ("damaged", str(error))
        pickle.dump(answer, answers)
        answers.flush()
    if runner is not None:
        runner.close()


if __name__ == "__main__":
    # Whatever a library prints must not get between the answers.
    with suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb") as stream:  # broken: the parent was killed
        os.dup2(2, 1)
        _serve(sys.stdin.buffer, stream)
