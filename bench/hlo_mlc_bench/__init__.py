"""The benchmarks of hlo_mlc: one registry of cases and one runner."""
