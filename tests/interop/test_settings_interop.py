"""Apache RocketMQ's own ``mqadmin updateBrokerConfig`` against a broker of ours."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from rmq_ray.model.fastjson import loads
from tests.interop.test_client_interop import ours
from tools import interop

CHECK_TIMEOUT_S = 120


def test_mqadmin_changes_a_setting_which_is_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
    with ours(tmp_path / "stores") as name_server:
        assert name_server, "the broker did not start"
        command = interop.command("AccessCheck")
        command[-1] = "org.apache.rocketmq.tools.command.MQAdminStartup"
        command += ["updateBrokerConfig", "-n", name_server, "-c", "interop"]
        command += ["-k", "fileReservedTime", "-v", "48"]
        done = subprocess.run(
            command,
            cwd=interop.TARGET,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            env={"ROCKETMQ_HOME": str(home), "PATH": "/usr/bin:/bin"},
        )
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "update broker config success" in done.stdout, said
        (file,) = (tmp_path / "stores").rglob("rmq_ray/settings.json")
        found = loads(file.read_text())
        assert isinstance(found, dict), json.dumps(found)
        assert found["settings"] == {"store.reserved_hours": "48"}
