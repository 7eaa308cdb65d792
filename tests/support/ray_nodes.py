"""A Ray cluster of several nodes on this machine, whose nodes come and go: `python -m tests.support.ray_nodes`.

Reads one command a line: `add CPUS GPUS` (the first node is the head), `kill N`, all processes of the N-th node at
once, `hold`, a core of the cluster for somebody else's work, `cover FILE OTHER`, after which nodes that are added find
another file's content in FILE, as on a disk of their own (needs the rights of root), or `where`, which changes nothing.
Answers each with the cluster's address and the folder of its logs. Ends with its input.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

import ray
from ray.cluster_utils import Cluster

CLONE_NEWNS = 0x20000


def main() -> None:
    cluster, nodes = Cluster(), []
    try:
        for line in sys.stdin:
            command, *words = line.split()
            if command == "add":
                cpus, gpus = map(int, words)
                head = {} if nodes else {"include_dashboard": False}
                nodes.append(cluster.add_node(wait=bool(nodes), num_cpus=cpus, num_gpus=gpus, **head))
            elif command == "kill":
                nodes[int(*words)].kill_all_processes(check_alive=False, allow_graceful=False)
            elif command == "cover":
                cover(*words)
            elif command == "hold":
                cluster.connect()
                holder = ray.remote(num_cpus=1)(Holder).remote()
                ray.get(holder.begun.remote())
            print(cluster.address, nodes[0].get_logs_dir_path(), flush=True)
    finally:
        for node in reversed(nodes):
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def cover(file: str, other: str) -> None:
    """Give this process, and what it starts from here on, mounts of its own, in which `other` lies over `file`."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", other, file], check=True)


class Holder:
    """Has a core as long as somebody knows it."""

    def begun(self) -> None:
        pass


if __name__ == "__main__":
    main()
