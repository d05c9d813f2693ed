"""The command line ``rmq-ray``."""
