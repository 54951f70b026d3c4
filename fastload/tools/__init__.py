"""What uses the loader: the measuring kit, benchmarks, sweep, monitor and demo. Nothing of the
loader imports this."""
