"""``python -m rmq_ray`` is ``rmq-ray``."""

from rmq_ray.cli.main import main

if __name__ == "__main__":
    main()
