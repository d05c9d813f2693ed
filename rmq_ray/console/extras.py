"""What the extra ``rmq_ray[console]`` brings: the web server, and the browser's scripts, which are
read from the packages that carry them and never imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from rmq_ray.errors import ConfigError

NEEDED = ("starlette", "uvicorn", "jinja2", "python_multipart", "django_htmx", "uplot")
SCRIPTS = {
    "htmx.js": ("django_htmx", "static/django_htmx/htmx-2.min.js"),
    "htmx-sse.js": ("django_htmx", "static/django_htmx/ext/hx-sse-2.min.js"),
    "uplot.js": ("uplot", "static/uPlot.iife.js"),
    "uplot.css": ("uplot", "static/uPlot.min.css"),
}
"""Name under ``/vendor`` -> the package that carries it, and where."""


def check_extra(needed: tuple[str, ...] = NEEDED) -> None:
    """``ConfigError`` names what to install."""
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the console needs {', '.join(missing)}: pip install 'rmq_ray[console]'", *missing
        )


def scripts() -> Mapping[str, Path]:
    """Name -> file."""
    found = {}
    for name, (package, inside) in SCRIPTS.items():
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            check_extra((package,))
            continue
        found[name] = Path(spec.submodule_search_locations[0]) / inside
    return found
