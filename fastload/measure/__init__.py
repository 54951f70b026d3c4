"""The measuring kit of `fastload bench`, `sweep` and `demo`, and of the benchmarks in the repository.

What is measured, and how:

- `rounds`: `measure(entries)` lets contestants take turns in interleaved rounds, the warm-up not counted; an `Entry` is
  a row, its `open()` makes a `Runner`, whose `run(seconds)` says in a `Work` what it did.
- `loaders` and `trainers`: a plain DataLoader, one batch over and over; a simulated trainer, a network; and the
  `LoaderRunner` that feeds one with the other.
- `process` (and `child`, its other end): one protocol for whatever is measured in processes of its own.
- `clock`: processor time and memory, worker processes included.
- `photographs`, `images`, `transforms`: a sample set, the images of a folder, what is done to them.

What comes out, and how it is shown:

- `results`: one schema (`Results` with `Measurement`s of `Round`s) for everything, as JSON and CSV; `ratios` of two
  contestants within each round. `machine` describes where it ran.
- `statistics`: median and spread, and when a difference is more than noise.
- `verdict`: a `Bar` is a bound on a number; `bar.judge(found)` is the `Verdict` in numbers and words.
- `table` for a terminal, `page` for a browser, `charts` on it.

Importing this package imports nothing.
"""
