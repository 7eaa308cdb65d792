"""Plain solvers of CLRS-Text that read a question and write its answer: the oracle of the tensors' algorithms."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import pairwise

import networkx as nx
import numpy as np
from scipy.spatial import ConvexHull

SORTS = ("insertion_sort", "bubble_sort", "heapsort", "quicksort")


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d[\d.]*", text)]


def shown(keys: list[float]) -> str:
    return f"[{' '.join(map(str, keys))}]"


def key_of(question: str) -> list[float]:
    [key] = re.findall(r"\nkey: \[(.*?)\]", question)
    assert all(0 <= number < 1 and str(number) in key.split() for number in numbers(key))
    return numbers(key)


def sorted_keys(question: str) -> str:
    return shown(sorted(key_of(question)))


def smallest(question: str) -> str:
    keys = key_of(question)
    return str(keys.index(min(keys)))


def searched(question: str) -> str:
    keys, [target] = key_of(question), numbers(question.split("target: ")[1])
    assert keys == sorted(keys)
    return str(min(bisect.bisect_left(keys, target), len(keys) - 1))


def best_part(question: str) -> str:
    """By trying all parts, in thousandths."""
    keys = [round(1000 * number) for number in numbers(question.split("[")[1].split("]")[0])]
    parts = [(sum(keys[i : j + 1]), -j, j - i) for i in range(len(keys)) for j in range(i, len(keys))]
    total, last, length = max(parts)
    assert -1000 * len(keys) < total
    return f"{-last - length}, {-last}"


def searched_in_breadth(question: str) -> str:
    """With a queue of layers; the matrix must be symmetric."""
    source, matrix = re.fullmatch(r"bfs:\ns: (\d+), A: \[(.*)\]\npi:\n", question).groups()
    rows = [list(map(int, row.split())) for row in re.findall(r"\[(.*?)\]", matrix)]
    assert [list(column) for column in zip(*rows, strict=True)] == rows
    parents, layer = {int(source): int(source)}, [int(source)]
    while layer:
        new: dict[int, int] = {}
        for node in sorted(layer):
            for other, linked in enumerate(rows[node]):
                if linked and other not in parents:
                    new.setdefault(other, node)
        parents |= new
        layer = list(new)
    return f"[{' '.join(str(parents.get(node, node)) for node in range(len(rows)))}]"


def directions(question: str) -> str:
    """Return the textbook's table, with an explicit border of zeros."""
    string, key = re.fullmatch(r"lcs_length:\nstring: \[(.*?)\], key: \[(.*?)\]\nb:\n", question).groups()
    first, letters = string.split().count("0"), key.split()
    assert sorted(string.split()) == string.split()
    assert first - (len(letters) - first) in (0, 1)
    length: Counter[tuple[int, int]] = Counter()
    rows = [["-1"] * len(letters) for _ in letters]
    for i in range(first):
        for j in range(first, len(letters)):
            if letters[i] == letters[j]:
                length[i, j] = length[i - 1, j - 1] + 1
                rows[i][j] = "0"
            else:
                up, left = length[i - 1, j], length[i, j - 1]
                length[i, j], rows[i][j] = (up, "1") if up >= left else (left, "2")
    return f"[{', '.join('[' + ' '.join(row) + ']' for row in rows)}]"


# --- numbers, in thousandths


def listed(question: str, name: str) -> list[str]:
    """Return the items of the list of this name."""
    [items] = re.findall(rf"(?:\n|, ){name}: \[([^\[\]]*)\]", question)
    return items.split()


def thousandths_of(question: str, name: str) -> list[int]:
    return [round(1000 * float(item)) for item in listed(question, name)]


def flags(chosen: list[bool]) -> str:
    return shown([int(flag) for flag in chosen])


def table(rows: list[list[int]]) -> str:
    return f"[{', '.join(map(shown, rows))}]"


def median(question: str) -> str:
    keys = thousandths_of(question, "key")
    return str(sorted(range(len(keys)), key=keys.__getitem__)[len(keys) // 2])


def selected_activities(question: str) -> str:
    """Taken as they end; no other choice has more, found by a table of the most that end by each time."""
    start, end = thousandths_of(question, "s"), thousandths_of(question, "f")
    chosen, free = [False] * len(start), 0
    order = sorted(range(len(end)), key=end.__getitem__)
    for activity in order:
        if start[activity] >= free:
            chosen[activity], free = True, end[activity]
    most = [0] * 1001
    for activity in order:
        here = 1 + most[start[activity]]
        most[end[activity] :] = [max(here, other) for other in most[end[activity] :]]
    assert sum(chosen) == most[1000]
    return flags(chosen)


def scheduled_tasks(question: str) -> str:
    deadlines, penalties = list(map(int, listed(question, "d"))), thousandths_of(question, "w")
    assert all(1 <= deadline <= len(deadlines) for deadline in deadlines)
    done = [False] * len(deadlines)
    for task in sorted(range(len(penalties)), key=lambda task: -penalties[task]):
        done[task] = sum(done) < deadlines[task]
    return flags(done)


def chain_splits(question: str) -> str:
    sides = thousandths_of(question, "p")
    rows = [[0] * len(sides) for _ in sides]

    @cache
    def least(i: int, j: int) -> int:
        if i == j:
            return 0
        costs = [least(i, k) + least(k + 1, j) + sides[i - 1] * sides[k] * sides[j] for k in range(i, j)]
        rows[i][j] = i + costs.index(min(costs))
        return min(costs)

    least(1, len(sides) - 1)
    return table(rows)


def tree_roots(question: str) -> str:
    """By the depth at which each search ends: every range is tried with each of its roots."""
    keys, between = thousandths_of(question, "p"), thousandths_of(question, "q")
    assert keys[-1] == 0
    assert len(keys) == len(between)
    rows = [[0] * len(keys) for _ in keys]

    @cache
    def least(i: int, j: int) -> int:
        if i == j:
            return between[i]
        costs = [least(i, root) + least(root + 1, j) for root in range(i, j)]
        rows[i][j] = i + costs.index(min(costs))
        return min(costs) + sum(keys[i:j]) + sum(between[i : j + 1])

    least(0, len(keys) - 1)
    return table(rows)


def matched(question: str) -> str:
    string, key = "".join(listed(question, "string")), "".join(listed(question, "key"))
    split = string.index("1")
    assert string == "0" * split + "1" * max(len(key) // 5, 1)
    return str(key.index(key[split:], 0, split))


def crossing(question: str) -> str:
    """By solving for the point that two lines have in common; on one line by the order of the ends."""
    x, y = thousandths_of(question, "x"), thousandths_of(question, "y")
    (a, b, c, d) = zip(x, y, strict=True)
    segment, other, gap = [(v[0] - u[0], v[1] - u[1]) for u, v in ((a, b), (c, d), (a, c))]
    across = segment[0] * other[1] - segment[1] * other[0]
    if across:
        along = [Fraction(gap[0] * v[1] - gap[1] * v[0], across) for v in (other, segment)]
        return str(int(all(0 <= share <= 1 for share in along)))
    if gap[0] * segment[1] != gap[1] * segment[0]:
        return "0"
    return str(int(max(min(a, b), min(c, d)) <= min(max(a, b), max(c, d))))


def corners(question: str) -> str:
    points = np.array([thousandths_of(question, "x"), thousandths_of(question, "y")]).T
    vertices = set(ConvexHull(points).vertices.tolist())
    return flags([point in vertices for point in range(len(points))])


# --- graphs


def weights_of(question: str) -> list[list[int]]:
    """Return the matrix A, in thousandths where it has decimals."""
    [matrix] = re.findall(r"A: \[(.*)\]\n", question)
    scale = 1000 if "." in matrix else 1
    rows = [[round(scale * float(item)) for item in row.split()] for row in re.findall(r"\[(.*?)\]", matrix)]
    assert {len(row) for row in rows} == {len(rows)}
    return rows


def source_of(question: str) -> int:
    [source] = re.findall(r"\ns: (\d+), A: ", question)
    return int(source)


def graph_of(question: str, directed: bool = False) -> nx.Graph:
    """Return the graph without loops; an undirected one's matrix must be symmetric."""
    rows = weights_of(question)
    assert directed or [list(column) for column in zip(*rows, strict=True)] == rows
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(range(len(rows)))
    links = ((u, v, weight) for u, row in enumerate(rows) for v, weight in enumerate(row) if weight and u != v)
    graph.add_weighted_edges_from(links)
    return graph


def visits(rows: list[list[int]], roots: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Each node's predecessor, and nodes in the order in which a recursive search finds and leaves them."""
    parent, entered, left = list(range(len(rows))), list[int](), list[int]()

    def visit(node: int) -> None:
        entered.append(node)
        for other, weight in enumerate(rows[node]):
            if weight and other not in entered:
                parent[other] = node
                visit(other)
        left.append(node)

    for root in roots:
        if root not in entered:
            visit(root)
    return parent, entered, left


def searched_in_depth(question: str) -> str:
    rows = weights_of(question)
    return shown(visits(rows, list(range(len(rows))))[0])


def topological(question: str) -> str:
    rows = weights_of(question)
    order = visits(rows, list(range(len(rows))))[2][::-1]
    assert all(
        not weight or order.index(u) < order.index(v) for u, row in enumerate(rows) for v, weight in enumerate(row)
    )
    after = {**dict(zip(order, order, strict=True)), **dict(pairwise(order))}
    return f"{shown([after[node] for node in range(len(rows))])}, {order[0]}"


def components(question: str) -> str:
    rows = weights_of(question)
    order, first = visits(rows, list(range(len(rows))))[1], dict[int, int]()
    for component in nx.strongly_connected_components(graph_of(question, directed=True)):
        first |= dict.fromkeys(component, min(component, key=order.index))
    return shown([first[node] for node in range(len(rows))])


def cut_nodes(question: str) -> str:
    graph = graph_of(question)
    cut = set(nx.articulation_points(graph))
    return flags([node in cut for node in range(len(graph))])


def bridge_table(question: str) -> str:
    graph = graph_of(question)
    size = len(graph)
    rows = [[0 if u == v or graph.has_edge(u, v) else -1 for v in range(size)] for u in range(size)]
    for u, v in nx.bridges(graph):
        rows[u][v] = rows[v][u] = 1
    return table(rows)


def spanning_table(question: str) -> str:
    graph = graph_of(question)
    rows = [[0] * len(graph) for _ in graph]
    for u, v in nx.minimum_spanning_edges(graph, algorithm="kruskal", data=False):
        rows[u][v] = rows[v][u] = 1
    return table(rows)


def spanning_tree(question: str) -> str:
    """With a set of nodes that wait; as light as the tree of networkx."""
    rows, graph, source = weights_of(question), graph_of(question), source_of(question)
    parent, waiting, joined = list(range(len(rows))), {source: 0}, set[int]()
    while waiting:
        node = min(waiting, key=lambda candidate: (waiting[candidate], candidate))
        del waiting[node]
        joined.add(node)
        for other, weight in enumerate(rows[node]):
            if weight and other not in joined and weight < waiting.get(other, 9999):
                waiting[other], parent[other] = weight, node
    tree = nx.minimum_spanning_tree(graph.subgraph(nx.node_connected_component(graph, source)))
    assert sum(rows[node][before] for node, before in enumerate(parent) if node != before) == tree.size("weight")
    return shown(parent)


def shortest(question: str, tie: Callable[[nx.Graph, dict[int, int], int], Callable[[int], object]]) -> str:
    """Predecessors by networkx's distances; of several that are on a shortest path the first by `tie`."""
    rows, source = weights_of(question), source_of(question)
    graph = graph_of(question, directed=True)
    distance = nx.single_source_dijkstra_path_length(graph, source)
    first, parent = tie(graph, distance, source), list(range(len(rows)))
    for node in distance.keys() - {source}:
        before = [u for u in distance if rows[u][node] and u != node and distance[u] + rows[u][node] == distance[node]]
        parent[node] = min(before, key=first)
    return shown(parent)


def nearest(graph: nx.Graph, distance: dict[int, int], source: int) -> Callable[[int], object]:
    return lambda node: (distance[node], node)


def fewest_links(graph: nx.Graph, distance: dict[int, int], source: int) -> Callable[[int], object]:
    """Return a round of Bellman and Ford for each link of a shortest path."""
    links = nx.DiGraph(
        [(u, v) for u, v, w in graph.edges.data("weight") if u in distance and distance[u] + w == distance[v]]
    )
    links.add_node(source)
    rounds = nx.single_source_shortest_path_length(links, source)
    return lambda node: (rounds[node], node)


def topological_place(graph: nx.Graph, distance: dict[int, int], source: int) -> Callable[[int], object]:
    rows = [[int(graph.has_edge(u, v)) for v in range(len(graph))] for u in range(len(graph))]
    return visits(rows, [source])[2][::-1].index


def all_predecessors(question: str) -> str:
    """Return distances by the textbook's three loops; those of different nodes are networkx's."""
    rows = weights_of(question)
    size = len(rows)
    distance = {(u, v): w for u, row in enumerate(rows) for v, w in enumerate(row) if w}
    for node in range(size):
        distance.setdefault((node, node), 0)
    parent = [[u] * size for u in range(size)]
    for k in range(size):
        old = dict(distance)
        for i in [i for i in range(size) if (i, k) in old]:
            for j in [j for j in range(size) if (k, j) in old]:
                through = old[i, k] + old[k, j]
                if (i, j) not in distance or through < distance[i, j]:
                    distance[i, j], parent[i][j] = through, parent[k][j]
    exact = dict(nx.all_pairs_dijkstra_path_length(graph_of(question)))
    assert all(exact[u][v] == length for (u, v), length in distance.items() if u != v)
    return table(parent)


Solver = Callable[[str], str]

SOLVERS: dict[str, tuple[Solver, str]] = {
    **dict.fromkeys(SORTS, (sorted_keys, "pred")),
    "minimum": (smallest, "min"),
    "binary_search": (searched, "return"),
    "quickselect": (median, "median"),
    "find_maximum_subarray_kadane": (best_part, "start, end"),
    "activity_selector": (selected_activities, "selected"),
    "task_scheduling": (scheduled_tasks, "selected"),
    "matrix_chain_order": (chain_splits, "s"),
    "lcs_length": (directions, "b"),
    "optimal_bst": (tree_roots, "root"),
    "bfs": (searched_in_breadth, "pi"),
    "dfs": (searched_in_depth, "pi"),
    "topological_sort": (topological, "topo, topo_head"),
    "articulation_points": (cut_nodes, "is_cut"),
    "bridges": (bridge_table, "is_bridge"),
    "strongly_connected_components": (components, "scc_id"),
    "mst_kruskal": (spanning_table, "in_mst"),
    "mst_prim": (spanning_tree, "pi"),
    "bellman_ford": (lambda q: shortest(q, fewest_links), "pi"),
    "dijkstra": (lambda q: shortest(q, nearest), "pi"),
    "dag_shortest_paths": (lambda q: shortest(q, topological_place), "pi"),
    "floyd_warshall": (all_predecessors, "Pi"),
    "naive_string_matcher": (matched, "match"),
    "kmp_matcher": (matched, "match"),
    "segments_intersect": (crossing, "intersect"),
    "graham_scan": (corners, "in_hull"),
    "jarvis_march": (corners, "in_hull"),
}
"""The solver of each algorithm, and the name of what it finds."""
