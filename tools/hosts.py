"""Several hosts on one machine: network, process, mount and name spaces of their own, with sshd,
joined by a bridge.

    with Hosts(directory, {"head": "10.77.0.1", "db1": "10.77.0.2"}) as hosts:
        hosts.run("desk", ["ssh", "10.77.0.2", "hostname"])       # the desk is the machine from
                                                                  # which people work
        hosts.cut_power("db1")                                    # every process of it ends at
                                                                  # once, its interface is gone
        hosts.boot("db1")                                         # the same disk, the same address

Each host has /mnt for itself (``directory/<name>``: disk, home, tmp) and sees the rest of the file
system. Everything ends with this process, also when it is killed: the first process of each host
reads from a pipe that only this process holds. Called by tests/e2e; Linux, root.

``python -m tools.hosts install`` installs sshd and rsync as CI does.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGES = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "rsync": "rsync",
    "ip": "iproute2",
    "unshare": "util-linux",
}
DESK = "desk"
DESK_ADDRESS = "10.77.0.254"
BOOT_S = 10.0
SSHD = "/usr/sbin/sshd"

_BOOT = """
set -e
hostname {name}
mount --bind {directory} /mnt
mkdir -p /mnt/all-tmp
mount --bind /tmp /mnt/all-tmp
mount --bind /mnt/tmp /tmp
for kept in {kept}; do mkdir -p "/$kept"; mount --bind "/mnt/all-$kept" "/$kept"; done
mount --bind /mnt/etc/passwd /etc/passwd
mount --bind /mnt/etc/shadow /etc/shadow
mount --bind /mnt/etc/hosts /etc/hosts
mount -t tmpfs tmpfs /run
mkdir /run/sshd
ip link set lo up
echo booted
while read -r _; do :; done
"""
_SSHD_CONFIG = """
HostKey /mnt/etc/ssh_host_key
AuthorizedKeysFile /mnt/home/.ssh/authorized_keys
PermitRootLogin yes
UsePAM no
UseDNS no
StrictModes no
PidFile none
MaxStartups 100
Subsystem sftp internal-sftp
"""


class HostsMissing(RuntimeError):
    """What this machine lacks; the message names what to install or allow."""


def check() -> None:
    """``HostsMissing`` where hosts cannot be made here."""
    for program, package in PACKAGES.items():
        if shutil.which(program) is None and not Path(f"/usr/sbin/{program}").exists():
            raise HostsMissing(
                f"{program} is not installed: python -m tools.hosts install, or apt-get "
                f"install {package}"
            )
    # in a namespace: it goes with it
    tried = "ip link add rmqcheck type veth peer name rmqpeer && mount -t tmpfs none /mnt"
    command = [
        "unshare",
        "--net",
        "--mount",
        "--pid",
        "--uts",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        tried,
    ]
    made = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if made.returncode:
        raise HostsMissing(
            f"namespaces are not permitted here ({made.stderr.strip()[:200]}): run as root "
            f"with CAP_SYS_ADMIN and CAP_NET_ADMIN"
        )


def install() -> None:
    """Install what is missing with apt, as root or by sudo."""
    wanted = sorted(
        {
            package
            for program, package in PACKAGES.items()
            if shutil.which(program) is None and not Path(f"/usr/sbin/{program}").exists()
        }
    )
    if not wanted:
        return
    as_root = [] if os.getuid() == 0 else ["sudo"]
    subprocess.run([*as_root, "apt-get", "update", "-qq"], check=True, stdin=subprocess.DEVNULL)
    command = [
        *as_root,
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "install",
        "-y",
        "-qq",
        "--no-install-recommends",
        *wanted,
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


class Hosts:
    """``addresses``: name -> IPv4 address in 10.77.0.0/24. ``keep``: directories that hosts see
    although they lie in /tmp.

    A context manager; nothing of it is left afterwards but ``directory``.
    """

    def __init__(
        self, directory: Path, addresses: Mapping[str, str], keep: Sequence[Path] = ()
    ) -> None:
        self.directory = directory
        self.addresses = {DESK: DESK_ADDRESS, **addresses}
        self._keep = keep
        self._running: dict[str, tuple[subprocess.Popen[str], int]] = {}

    def __enter__(self) -> Hosts:
        try:
            self._prepare()
            for name in self.addresses:
                self.boot(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def boot(self, name: str) -> None:
        """Start a host that does not run; returns when sshd takes connections."""
        command = [
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--uts",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
        ]
        kept = " ".join(
            shlex.quote(str(path).lstrip("/")) for path in self._keep if path.is_relative_to("/tmp")
        )
        script = _BOOT.format(
            name=name, directory=shlex.quote(str(self.directory / name)), kept=kept
        )
        log = (self.directory / f"{name}.boot.log").open("a")
        process = subprocess.Popen(
            [*command, "bash", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        first = _child(process.pid)
        if said != "booted" or first is None:
            process.kill()
            raise RuntimeError(
                f"host {name} did not boot: "
                f"{(self.directory / f'{name}.boot.log').read_text()[-500:]}"
            )
        self._running[name] = (process, first)
        self._plug_in(name, first)
        if name != DESK:
            self.run(name, [SSHD, "-f", "/mnt/etc/sshd_config", "-E", "/mnt/sshd.log"])
            self._await_sshd(name)

    def cut_power(self, name: str) -> None:
        """End every process of a host at once and take its interface away; its directory stays."""
        process, first = self._running.pop(name)
        os.kill(first, signal.SIGKILL)
        process.wait(BOOT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def pids(self, name: str) -> list[int]:
        """Processes of a host, as this machine numbers them."""
        _, first = self._running[name]
        mine = os.readlink(f"/proc/{first}/ns/pid")
        found = []
        for directory in Path("/proc").iterdir():
            try:
                if directory.name.isdigit() and os.readlink(directory / "ns" / "pid") == mine:
                    found.append(int(directory.name))
            except OSError:
                continue  # ended meanwhile
        return found

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> str:
        """Run a command on a host, as its user; its standard output. ``RuntimeError`` with its
        words where it fails and ``check`` is set.
        """
        _, first = self._running[name]
        home = {
            "HOME": "/mnt/home",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        entered = ["nsenter", f"--target={first}", "--net", "--mount", "--pid", "--uts", *command]
        out, err = self.directory / f"{name}.out", self.directory / f"{name}.err"
        with (
            out.open("w") as output,
            err.open("w") as errors,
        ):  # no pipes: what stays running would hold their other ends
            try:
                code = subprocess.run(
                    entered,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    env={**home, **(env or {})},
                    timeout=timeout_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
        if code and check:
            said = out.read_text()[-3000:] + err.read_text()[-3000:]
            raise RuntimeError(
                f"on {name}: {' '.join(command)[:200]} ended with "
                f"{'no end in time' if code == -1 else code}:\n{said}"
            )
        return out.read_text()

    def close(self) -> None:
        """End all hosts."""
        for name in list(self._running):
            self.cut_power(name)

    def _prepare(self) -> None:
        """Directories, keys and settings of all hosts; one key opens all of them."""
        self.directory.mkdir(parents=True, exist_ok=True)
        key = self.directory / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        user = pwd.getpwuid(os.getuid()).pw_name
        hosts = "127.0.0.1 localhost\n" + "".join(
            f"{address} {name}\n" for name, address in self.addresses.items()
        )
        for name in self.addresses:
            for part in ("tmp", "disk", "home/.ssh", "etc"):
                (self.directory / name / part).mkdir(parents=True)
            (self.directory / name / "tmp").chmod(0o1777)
            etc, ssh = self.directory / name / "etc", self.directory / name / "home" / ".ssh"
            (etc / "passwd").write_text(
                f"{user}:*:{os.getuid()}:{os.getgid()}::/mnt/home:/bin/"
                f"bash\nsshd:*:65533:65534::/run/sshd:/usr/sbin/nologin\n"
            )
            (etc / "shadow").write_text(f"{user}:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n")
            (etc / "hosts").write_text(hosts)
            (etc / "sshd_config").write_text(_SSHD_CONFIG)
            shutil.copy(key, etc / "ssh_host_key")
            shutil.copy(key, ssh / "id_ed25519")
            shutil.copy(key.with_suffix(".pub"), ssh / "authorized_keys")

    def _plug_in(self, name: str, first: int) -> None:
        """The desk has the bridge, every other host one end of a pair of interfaces."""
        address = self.addresses[name]
        if name == DESK:
            for command in (
                "link add br0 type bridge",
                "link set br0 up",
                f"addr add {address}/24 dev br0",
            ):
                self.run(DESK, ["ip", *command.split()])
            return
        desk = self._running[DESK][1]
        subprocess.run(
            [
                "nsenter",
                f"--target={desk}",
                "--net",
                "ip",
                "link",
                "add",
                f"v-{name}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                str(first),
            ],
            check=True,
        )
        self.run(DESK, ["ip", "link", "set", f"v-{name}", "master", "br0", "up"])
        # The same hardware address after every boot, as machines have: neighbours remember it for a
        # minute. Without a default route Ray takes 127.0.0.1 for the node's address.
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        for command in (
            f"link set eth0 address {hardware}",
            f"addr add {address}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {DESK_ADDRESS}",
        ):
            self.run(name, ["ip", *command.split()])

    def _await_sshd(self, name: str) -> None:
        deadline = time.monotonic() + BOOT_S
        while True:
            said = self.run(
                DESK,
                ["bash", "-c", f"exec 3<>/dev/tcp/{self.addresses[name]}/22 && head -c 4 <&3"],
                check=False,
            )
            if said.startswith("SSH-"):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"sshd of {name} does not answer: "
                    f"{(self.directory / name / 'sshd.log').read_text()[-500:]}"
                )
            time.sleep(0.05)


def _child(pid: int) -> int | None:
    """The first process of the namespace that this ``unshare`` made."""
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and (directory / "stat").read_text().rpartition(")")[
                2
            ].split()[1] == str(pid):
                return int(directory.name)
        except OSError:
            continue
    return None


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit("usage: python -m tools.hosts install")
    install()
