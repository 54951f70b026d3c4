"""Frameworks of others: all that knows them by name, or stands in for one of their classes.

The Loader derives from `dataloader.ShownAsDataLoader`; frameworks are joined to it by two hooks:

- `_handed_over()`: the plain DataLoader that a framework gets in its place, to do with it what it
  always does;
- `_adopted_again(dataloader, device)`: what the framework has made of it, as a Loader.

No framework is imported before a script has imported it.
"""
