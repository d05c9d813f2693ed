"""Programs that run: each is one way to use rmq_ray, from a script."""
