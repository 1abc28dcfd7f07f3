// Assigns nodes to layers, so that traffic flows from left to right.

import type { TopologyData } from './types';

export interface Graph {
  names: string[];
  index: Map<string, number>;
  kind: string[];
  /** Per link: its two node numbers, in the order of `ends`. */
  ends: [number, number][];
  /** Per node: its links. */
  incident: number[][];
}

/** Nodes that occur only in links are added. */
export function buildGraph(data: TopologyData): Graph {
  const graph: Graph = { names: [], index: new Map(), kind: [], ends: [], incident: [] };
  const add = (name: string, kind: string) => {
    const known = graph.index.get(name);
    if (known !== undefined) return known;
    const id = graph.names.length;
    graph.names.push(name);
    graph.kind.push(kind);
    graph.incident.push([]);
    graph.index.set(name, id);
    return id;
  };
  for (const n of data.nodes) add(n.name, n.kind);
  data.links.forEach((l, i) => {
    const ends: [number, number] = [add(l.ends[0], 'external'), add(l.ends[1], 'external')];
    graph.ends.push(ends);
    graph.incident[ends[0]]!.push(i);
    if (ends[1] !== ends[0]) graph.incident[ends[1]]!.push(i);
  });
  return graph;
}

export function other(graph: Graph, link: number, node: number): number {
  const [a, b] = graph.ends[link]!;
  return a === node ? b : a;
}

type Side = -1 | 0 | 1;

/**
 * Returns the layer of each node, 0 leftmost. The paths of VPNs, or else of flows, determine the direction; without
 * both, the longest path through the network does.
 */
export function rankNodes(graph: Graph, data: TopologyData): number[] {
  const count = graph.names.length;
  const rank: (number | null)[] = new Array(count).fill(null);
  const side: Side[] = new Array(count).fill(0);
  const paths = (data.vpns?.length ? data.vpns.map((v) => v.path) : (data.paths ?? []))
    .map((path) => path.map((n) => graph.index.get(n)).filter((n): n is number => n !== undefined))
    .filter((p) => p.length > 1);
  if (paths.length > 0) rankPaths(paths, count, rank, side);
  attach(graph, rank, side);
  for (let n = 0; n < count; n++) {
    if (rank[n] !== null) continue;
    const spine = longestWay(graph, n);
    spine.forEach((v, i) => {
      rank[v] = i;
      side[v] = i < (spine.length - 1) / 2 ? -1 : i > (spine.length - 1) / 2 ? 1 : 0;
    });
    attach(graph, rank, side);
  }
  const least = Math.min(...(rank as number[]));
  return (rank as number[]).map((r) => r - least);
}

function rankPaths(paths: number[][], count: number, rank: (number | null)[], side: Side[]): void {
  const next: Set<number>[] = Array.from({ length: count }, () => new Set());
  const before: Set<number>[] = Array.from({ length: count }, () => new Set());
  const reaches = (from: number, to: number): boolean => {
    const seen = new Set([from]);
    const stack = [from];
    while (stack.length > 0) {
      const v = stack.pop()!;
      if (v === to) return true;
      for (const w of next[v]!) if (!seen.has(w)) seen.add(w), stack.push(w);
    }
    return false;
  };
  for (const path of paths) {
    for (let i = 1; i < path.length; i++) {
      const [a, b] = [path[i - 1]!, path[i]!];
      if (a === b || next[a]!.has(b) || reaches(b, a)) continue;
      next[a]!.add(b);
      before[b]!.add(a);
    }
  }
  const order: number[] = [];
  const waiting = before.map((b) => b.size);
  const ready = [...new Set(paths.flat())].filter((v) => waiting[v] === 0);
  for (let i = 0; i < ready.length; i++) {
    const v = ready[i]!;
    order.push(v);
    rank[v] = Math.max(-1, ...[...before[v]!].map((u) => rank[u]!)) + 1;
    for (const w of next[v]!) if (--waiting[w]! === 0) ready.push(w);
  }
  // Sources are placed next to the nodes they feed, as in the usual drawing of a parking lot.
  for (const v of order.reverse()) {
    if (next[v]!.size === 0 || before[v]!.size > next[v]!.size) continue;
    rank[v] = Math.min(...[...next[v]!].map((w) => rank[w]!)) - 1;
  }
  for (const v of order) side[v] = before[v]!.size === 0 ? -1 : next[v]!.size === 0 ? 1 : 0;
}

/** Places neighbors of ranked nodes one layer further out, on the side of the ranked node. */
function attach(graph: Graph, rank: (number | null)[], side: Side[]): void {
  const queue = rank.flatMap((r, v) => (r === null ? [] : [v]));
  for (let i = 0; i < queue.length; i++) {
    const v = queue[i]!;
    for (const link of graph.incident[v]!) {
      const w = other(graph, link, v);
      if (rank[w] !== null) continue;
      const toward: Side = side[v] !== 0 ? side[v]! : graph.ends[link]![0] === w ? -1 : 1;
      rank[w] = rank[v]! + toward;
      side[w] = toward;
      queue.push(w);
    }
  }
}

function longestWay(graph: Graph, start: number): number[] {
  const far = (from: number): { last: number; parent: Map<number, number> } => {
    const parent = new Map([[from, -1]]);
    const queue = [from];
    let depth = new Map([[from, 0]]);
    let last = from;
    for (let i = 0; i < queue.length; i++) {
      const v = queue[i]!;
      if (depth.get(v)! > depth.get(last)!) last = v;
      for (const link of graph.incident[v]!) {
        const w = other(graph, link, v);
        if (parent.has(w)) continue;
        parent.set(w, v);
        depth.set(w, depth.get(v)! + 1);
        queue.push(w);
      }
    }
    return { last, parent };
  };
  const one = far(start).last;
  const { last, parent } = far(one);
  const way: number[] = [];
  for (let v = last; v !== -1; v = parent.get(v)!) way.push(v);
  return way[0]! <= way[way.length - 1]! ? way : way.reverse();
}
