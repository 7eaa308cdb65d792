"""A Ray cluster of several nodes on this machine, whose nodes come and go: `python -m tests.ray_nodes`.

Reads one command a line: `add CPUS GPUS` (the first node is the head), `kill N`, all processes of the N-th node at
once, `hold`, a core of the cluster for somebody else's work, or `where`, which changes nothing. Answers each with the
cluster's address and the folder of its logs. Ends with its input.
"""

from __future__ import annotations

import sys

import ray
from ray.cluster_utils import Cluster


def main() -> None:
    cluster, nodes = Cluster(), []
    try:
        for line in sys.stdin:
            command, *numbers = line.split()
            if command == "add":
                cpus, gpus = map(int, numbers)
                head = {} if nodes else {"include_dashboard": False}
                nodes.append(cluster.add_node(wait=bool(nodes), num_cpus=cpus, num_gpus=gpus, **head))
            elif command == "kill":
                nodes[int(*numbers)].kill_all_processes(check_alive=False, allow_graceful=False)
            elif command == "hold":
                cluster.connect()
                holder = ray.remote(num_cpus=1)(Holder).remote()
                ray.get(holder.begun.remote())
            print(cluster.address, nodes[0].get_logs_dir_path(), flush=True)
    finally:
        for node in reversed(nodes):
            node.kill_all_processes(check_alive=False, allow_graceful=False)


class Holder:
    """Has a core as long as somebody knows it."""

    def begun(self) -> None:
        pass


if __name__ == "__main__":
    main()
