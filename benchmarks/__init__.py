"""Measurements: ``python -m benchmarks`` (``make bench``), ``python -m benchmarks --peers`` (``make
bench-peers``).
"""
