"""Two machines, as docs/deployment.md has it: a node joins through an ssh tunnel.

The machines are network namespaces with a cable between them; each has a loopback of its own, so
that 127.0.0.1 on one does not reach the other.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from machines import POCKETFED, Machines, Program, machines
from test_deployment import node_rounds, prepare, result, wait_for_round

from server.store import Store

SERVER, NODE = "10.231.77.1", "10.231.77.2"
SSH_PORT = "2222"
TOOLS = ("ip", "ssh", "sshd", "ssh-keygen")


def call(*command: str) -> str:
    """What a command prints; CalledProcessError if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@contextmanager
def cable() -> Iterator[tuple[str, str]]:
    """Names of two namespaces that reach each other as SERVER and NODE; gone afterwards."""
    names = f"pf-server-{os.getpid()}", f"pf-node-{os.getpid()}"
    made = []
    try:
        for name in names:
            call("ip", "netns", "add", name)
            made.append(name)
        ends = f"pfs{os.getpid()}", f"pfn{os.getpid()}"
        call("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, (SERVER, NODE), strict=True):
            call("ip", "link", "set", end, "netns", name)
            call("ip", "-n", name, "address", "add", f"{address}/24", "dev", end)
            call("ip", "-n", name, "link", "set", "lo", "up")
            call("ip", "-n", name, "link", "set", end, "up")
        yield names
    except (subprocess.CalledProcessError, PermissionError) as e:
        if len(made) == len(names):
            raise
        pytest.skip(f"no network namespaces here: {getattr(e, 'stderr', e)}")
    finally:
        for name in made:
            call("ip", "netns", "delete", name)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[tuple[Machines, str, str]]:
    """Machines, and the namespaces of the server and of the node."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (Debian: openssh-server, iproute2)")
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    with cable() as (server, node), machines(tmp_path) as found:
        yield found, server, node


def start_sshd(here: Machines, at: str) -> Path:
    """An ssh server that lets one key in; the key."""
    for name in ("host", "user"):
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(here.folder / name))
    Path("/run/sshd").mkdir(exist_ok=True)  # where it has to be, or sshd does not start
    options = {
        "ListenAddress": SERVER,
        "HostKey": here.folder / "host",
        "AuthorizedKeysFile": here.folder / "user.pub",
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
    }
    settings = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    sshd = str(shutil.which("sshd"))
    command = [sshd, "-D", "-e", "-f", "/dev/null", "-p", SSH_PORT, *settings]
    here.start("sshd", "ip", "netns", "exec", at, *command).waits_for("Server listening")
    return here.folder / "user"


def start_tunnel(here: Machines, at: str, label: str, key: Path) -> Program:
    """``ssh -N -L 8000:127.0.0.1:8000 USER@SERVER``, with another port and a key of its own."""
    forwarded = f"{here.port}:127.0.0.1:{here.port}"
    options = ("StrictHostKeyChecking=no", f"UserKnownHostsFile={here.folder / 'known'}")
    return here.start(
        label,
        *("ip", "netns", "exec", at, "ssh", "-F", "/dev/null", "-N", "-L", forwarded),
        *("-p", SSH_PORT, "-i", str(key), "-o", options[0], "-o", options[1], f"root@{SERVER}"),
    )


@pytest.mark.slow
def test_a_node_on_another_machine_joins_through_a_tunnel(
    here: tuple[Machines, str, str],
) -> None:
    """Before the server is there; then the tunnel is lost and comes back, and no round with it.

    The server's port itself cannot be reached from the other machine.
    """
    found, at_server, at_node = here
    prepare(found.folder, federation={"rounds": 6}, data={"partition": {"nodes": 2}})
    run, port = found.folder / "run", str(found.port)
    key = start_sshd(found, at_server)
    tunnel = start_tunnel(found, at_node, "tunnel", key)
    where = ("join", "--server", f"127.0.0.1:{port}", "--data")
    far, near = (
        found.start(
            label, "ip", "netns", "exec", at, POCKETFED, *where, str(found.folder / "parts" / file)
        )
        for label, at, file in (
            ("far", at_node, "node-0.npz"),
            ("near", at_server, "node-1.npz"),
        )
    )
    far.waits_for("does not answer")
    options = ("--nodes", "2", "--wait", "300", "--out", "run", "--port", port, "--json")
    command = (POCKETFED, "serve", "small.yaml", *options)
    server = found.start("server", "ip", "netns", "exec", at_server, *command)
    wait_for_round(server, run, 2)
    past_the_tunnel = ("bash", "-c", f"exec 3<>/dev/tcp/{SERVER}/{port}")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        call("ip", "netns", "exec", at_node, *past_the_tunnel)
    assert "Connection refused" in refused.value.stderr
    tunnel.process.send_signal(signal.SIGKILL)
    tunnel.process.wait()
    far.waits_for("): asking again")  # refused, or cut off in mid-answer
    start_tunnel(found, at_node, "second-tunnel", key)
    assert server.ends() == 0, server.text()
    assert result(server)["rounds"] == 6
    assert {(r.round, r.partition) for r in node_rounds(run) if r.status == "ok"} == {
        (n, f"node-{i}") for n in range(1, 7) for i in range(2)
    }
    with Store.read(run / "run.db") as store:
        assert {e.kind for e in store.events()} <= {"joined", "came back", "left", "parity"}
    for node in (far, near):
        assert node.interrupt() == 0, node.text()
