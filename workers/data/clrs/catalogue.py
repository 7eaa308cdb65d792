"""The thirty algorithms of the CLRS benchmark (Velickovic et al., arXiv 2205.15659), by name."""

from __future__ import annotations

from collections.abc import Mapping

from workers.data.clrs.algorithms import Algorithm, BinarySearch, MaximumSubarray, Minimum, Quickselect, Sorting
from workers.data.clrs.dynamic import LongestCommonSubsequence, MatrixChainOrder, OptimalSearchTree
from workers.data.clrs.geometry import ConvexHull, SegmentsIntersect
from workers.data.clrs.graphs import (
    ArticulationPoints,
    Bridges,
    NodeForEach,
    PairPredecessors,
    SpanningForest,
    TopologicalSort,
)
from workers.data.clrs.greedy import ActivitySelector, TaskScheduling
from workers.data.clrs.paths import bellman_ford, dag_shortest_paths, dijkstra, floyd_warshall, kruskal, prim
from workers.data.clrs.random_graphs import Acyclic, Communities, Directed, Undirected
from workers.data.clrs.searches import breadth_first, depth_first, strong_components
from workers.data.clrs.strings import StringMatching
from workers.data.clrs.traces import bubble_sort, heapsort, insertion_sort, most_of_heapsort, quicksort

SPARSE = 0.2
ROADS = Undirected(weighted=True)

ALGORITHMS: Mapping[str, Algorithm] = {
    "insertion_sort": Sorting(states=insertion_sort, most_states=lambda size: size - 1),
    "bubble_sort": Sorting(states=bubble_sort, most_states=lambda size: size * (size - 1) // 2),
    "heapsort": Sorting(states=heapsort, most_states=most_of_heapsort),
    "quicksort": Sorting(states=quicksort, most_states=lambda size: size * (size + 1) // 2 - 2),
    "minimum": Minimum(),
    "binary_search": BinarySearch(),
    "quickselect": Quickselect(),
    "find_maximum_subarray_kadane": MaximumSubarray(),
    "activity_selector": ActivitySelector(),
    "task_scheduling": TaskScheduling(),
    "matrix_chain_order": MatrixChainOrder(),
    "lcs_length": LongestCommonSubsequence(),
    "optimal_bst": OptimalSearchTree(),
    "bfs": NodeForEach(graph=Undirected(), sourced=True, find=lambda a, s, _: breadth_first(a > 0, s)),
    "dfs": NodeForEach(graph=Directed(), find=lambda a, _, sizes: depth_first(a > 0, sizes).parent),
    "topological_sort": TopologicalSort(graph=Acyclic()),
    "articulation_points": ArticulationPoints(graph=Undirected(chance=SPARSE)),
    "bridges": Bridges(graph=Undirected(chance=SPARSE)),
    "strongly_connected_components": NodeForEach(
        asked="scc_id", graph=Communities(), find=lambda a, _, sizes: strong_components(a > 0, sizes)
    ),
    "mst_kruskal": SpanningForest(graph=Undirected(weighted=True, chance=SPARSE), find=kruskal),
    "mst_prim": NodeForEach(graph=ROADS, sourced=True, find=lambda a, s, _: prim(a, s)),
    "bellman_ford": NodeForEach(graph=ROADS, sourced=True, find=lambda a, s, _: bellman_ford(a, s)),
    "dijkstra": NodeForEach(graph=ROADS, sourced=True, find=lambda a, s, _: dijkstra(a, s)),
    "dag_shortest_paths": NodeForEach(graph=Acyclic(weighted=True), sourced=True, find=dag_shortest_paths),
    "floyd_warshall": PairPredecessors(graph=ROADS, find=floyd_warshall),
    "naive_string_matcher": StringMatching(),
    "kmp_matcher": StringMatching(),
    "segments_intersect": SegmentsIntersect(),
    "graham_scan": ConvexHull(),
    "jarvis_march": ConvexHull(),
}
