"""What scripts/bench measures: every module `bench_*.py` here holds functions marked with `@benchmark`."""
