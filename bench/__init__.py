"""The benchmarks of hlo_mlc: one registry of cases and one runner (imported as `hlo_mlc_bench`)."""
