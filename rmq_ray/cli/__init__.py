"""The command line ``rmq-ray``: one module for each noun.

Decides how results are printed and which exit code ends a command. Open first: ``main.py``.
"""
