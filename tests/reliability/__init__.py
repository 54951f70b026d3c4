"""What must not happen, whatever happens to the machine, the data and the process
(docs/reliability.md)."""
