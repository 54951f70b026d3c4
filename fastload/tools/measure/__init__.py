"""The measuring kit of `fastload bench`, `sweep` and `demo`, and of the benchmarks in the
repository.

What is measured, and how:

- `rounds`: `measure(entries)` lets contestants take turns in interleaved rounds, the warm-up not
  counted; an `Entry` is a row, its `open()` makes a `Runner`, whose `run(seconds)` says in a `Work`
  what it did.
- `loaders`: a plain DataLoader, one batch over and over; a simulated trainer, a network; and the
  `LoaderRunner` that feeds one with the other.
- `process` (and `child`, its other end): one protocol for whatever is measured in processes of its
  own.
- `clock`: processor time and memory, worker processes included.
- `images` and `photographs`: the images of a folder, a sample set, what is done to them.

What comes out, and how it is shown:

- `results`: one schema (`Results` with `Measurement`s of `Round`s, and the machine) for everything,
  as JSON and CSV; `ratios` of two contestants within each round.
- `statistics`: median and spread, and when a difference is more than noise; `judge` holds numbers
  against a bound, and its `Verdict` says so in words.
- `table` for a terminal, `page` for a browser, `charts` on it.

Importing this package imports nothing.
"""
