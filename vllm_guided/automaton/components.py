"""Strongly connected components of numbered things that lead to one another (rules that call rules)."""

# Compiled functions have numba signatures instead of annotations.
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
from numba import types

from vllm_guided.numba_setup import jit

_ints = types.int32[::1]


@jit(types.Tuple((_ints, _ints))(_ints, _ints))
def strong_components(offsets, successors):
    """Tarjan's algorithm (1972), without recursion.

    Args:
        offsets: int32 [n + 1]; what node ``i`` leads to is ``successors[offsets[i]:offsets[i + 1]]``.

    Returns:
        order: int32 [n], all nodes, component by component, what they lead to first;
        component: int32 [n], the component's number by node, in that order.
    """
    count = offsets.size - 1
    index = np.full(count, -1, np.int32)
    low = np.zeros(count, np.int32)
    component = np.full(count, -1, np.int32)
    order = np.empty(count, np.int32)
    stack = np.empty(count, np.int32)
    path = np.empty(count, np.int32)
    following = offsets[:count].copy()
    met = np.int32(0)
    components = np.int32(0)
    done = 0
    held = 0
    for root in range(count):
        if index[root] >= 0:
            continue
        path[0] = root
        depth = 1
        index[root] = met
        low[root] = met
        met += np.int32(1)
        stack[held] = root
        held += 1
        while depth > 0:
            node = path[depth - 1]
            advanced = False
            while following[node] < offsets[node + 1]:
                successor = successors[following[node]]
                following[node] += 1
                if index[successor] < 0:
                    index[successor] = met
                    low[successor] = met
                    met += np.int32(1)
                    stack[held] = successor
                    held += 1
                    path[depth] = successor
                    depth += 1
                    advanced = True
                    break
                if component[successor] < 0:
                    low[node] = min(low[node], index[successor])
            if advanced:
                continue
            depth -= 1
            if depth > 0:
                parent = path[depth - 1]
                low[parent] = min(low[parent], low[node])
            if low[node] == index[node]:
                while True:
                    held -= 1
                    member = stack[held]
                    component[member] = components
                    order[done] = member
                    done += 1
                    if member == node:
                        break
                components += np.int32(1)
    return order, component


@jit(types.Tuple((_ints, _ints))(types.int64, _ints))
def grouped(count, pairs):
    """Pairs ``from, to`` grouped by ``from``: offsets ``[count + 1]``, and what each leads to, in order."""
    offsets = np.zeros(count + 1, np.int32)
    for k in range(0, pairs.size, 2):
        offsets[pairs[k] + 1] += 1
    for i in range(count):
        offsets[i + 1] += offsets[i]
    fill = offsets.copy()
    successors = np.empty(pairs.size // 2, np.int32)
    for k in range(0, pairs.size, 2):
        successors[fill[pairs[k]]] = pairs[k + 1]
        fill[pairs[k]] += 1
    return offsets, successors
