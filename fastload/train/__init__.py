"""The reference trainer: fed by the loader, from one CPU to several machines, from the same command line."""
