"""Frameworks of others: all that knows them by name, looks at a caller's frame, or stands in for
one of their classes.

The Loader derives from `accelerate.PreparedByAccelerate` and `dataloader.ShownAsDataLoader`; the
rest of fastload is joined to them by hooks of the Loader:

- `config` and `_reconfigure(config, asked_by)`: what it was made from, and being made from
  something else before its first `iter()`;
- `_watch(watcher)`: called when an epoch starts, a batch comes, an epoch ends
  (`loader.iterator.Watcher`);
- `skip(batches)` and `set_epoch(epoch)`: the place to go on from;
- `sampler.order`: which samples come when, on this rank.

No framework is imported before a script has imported it.
"""
