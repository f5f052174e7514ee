"""Random programs: written, compiled, judged, made small and counted; `scripts/fuzz.py` runs it."""
