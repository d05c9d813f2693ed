"""What is said in a Ray that is too old."""

from __future__ import annotations

import pytest
import ray

from rmq_ray import data as mqd
from rmq_ray.actors import gateway, ray_versions
from rmq_ray.errors import ClusterError


def test_a_ray_that_is_older_than_all_that_were_tried_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray, "__version__", "2.49.2")
    with pytest.raises(ClusterError, match=r"Ray 2\.49\.2 is older than 2\.50: pip install"):
        gateway.require_ray()
    monkeypatch.setattr(ray, "__version__", "2.50.0")
    ray_versions.require_window()


def test_what_newer_rays_alone_can_do_says_so_in_an_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert mqd.offset_checkpoint is not None
    monkeypatch.setattr(ray, "__version__", "2.55.1")
    with pytest.raises(ClusterError, match=r"needs Ray 2\.60 or newer, this is 2\.55\.1: .*stream"):
        mqd.unwritten  # noqa: B018 - loading it is the test
    with pytest.raises(AttributeError, match="no attribute 'offsets'"):
        mqd.offsets  # noqa: B018


def test_a_block_tells_rows_and_bytes_and_no_files() -> None:
    told = ray_versions.block_metadata(7, 700)
    assert (told.num_rows, told.size_bytes, told.exec_stats) == (7, 700, None)
    assert not told.input_files
