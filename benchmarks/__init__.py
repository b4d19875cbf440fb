"""Benchmarks: a catalogue of workloads, rivals beside them, and one command that runs it all.

`python -m benchmarks` (or `make bench`) measures, prints a table, and writes `results.json` and
a few pictures. Rivals are optional: those that are not installed are skipped, and it says so.
"""
