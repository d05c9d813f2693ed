"""Commands of topics as tables.

Decides how they are asked and printed; ``rmq_ray.table.tables`` decides the rest.
"""
