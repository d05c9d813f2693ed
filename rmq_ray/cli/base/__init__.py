"""What every command stands on: the options and the cluster that they name (``context``), how it is
found (``ray_head``) and how results are printed (``output``).
"""
