// Draws many equal branches as one: fifty PEs with one host each behind the same core router, on equal links.

import { other, type Graph } from './rank';
import type { TopologyData } from './types';

export interface Collapsed {
  /** Nodes to draw. */
  nodes: number[];
  /** Links to draw. */
  links: number[];
  /** Per node of the graph: the node that represents it. */
  standsFor: number[];
  /** Per drawn node: all nodes it represents, itself first. */
  members: Map<number, number[]>;
  linkMembers: Map<number, number[]>;
}

/** Diagrams with fewer rows are not collapsed. */
export const READABLE_ROWS = 16;
const LEAST_EQUAL = 4;

export function collapse(graph: Graph, data: TopologyData, rank: number[]): Collapsed {
  const whole = identity(graph);
  if (rows(whole.nodes, rank) <= READABLE_ROWS) return whole;
  const strict = merge(graph, data, rank, true);
  return rows(strict.nodes, rank) <= 1.5 * READABLE_ROWS ? strict : merge(graph, data, rank, false);
}

export function identity(graph: Graph): Collapsed {
  const nodes = graph.names.map((_, i) => i);
  const links = graph.ends.map((_, i) => i);
  return {
    nodes, links,
    standsFor: nodes,
    members: new Map(nodes.map((n) => [n, [n]])),
    linkMembers: new Map(links.map((l) => [l, [l]])),
  };
}

function rows(nodes: number[], rank: number[]): number {
  const count = new Map<number, number>();
  for (const n of nodes) count.set(rank[n]!, (count.get(rank[n]!) ?? 0) + 1);
  return Math.max(0, ...count.values());
}

interface Branch {
  node: number;
  link: number;
  signature: string;
  children: Branch[];
}

/** `strict`: branches are equal only if their rates and delays are equal. */
function merge(graph: Graph, data: TopologyData, rank: number[], strict: boolean): Collapsed {
  const { parent, roots } = hangingTrees(graph);
  const children: number[][] = graph.names.map(() => []);
  parent.forEach((link, v) => {
    if (link >= 0) children[other(graph, link, v)]!.push(v);
  });
  const branch = (v: number): Branch => {
    const link = parent[v]!;
    const below = children[v]!.map(branch).sort((a, b) => (a.signature < b.signature ? -1 : a.signature > b.signature ? 1 : a.node - b.node));
    const { rate, delay } = data.links[link]!;
    const own = JSON.stringify([graph.kind[v], rank[v], ...(strict ? [rate, delay] : [])]);
    return { node: v, link, children: below, signature: `${own}(${below.map((b) => b.signature).join()})` };
  };
  const result: Collapsed = {
    nodes: [], links: [],
    standsFor: graph.names.map((_, i) => i),
    members: new Map(),
    linkMembers: new Map(),
  };
  const keep = (v: number, equals: number[]) => {
    result.nodes.push(v);
    result.members.set(v, equals);
    for (const e of equals) result.standsFor[e] = v;
  };
  /** Equal branches, of which one is drawn. */
  const draw = (equal: Branch[]) => {
    const first = equal[0]!;
    keep(first.node, equal.map((b) => b.node));
    result.links.push(first.link);
    result.linkMembers.set(first.link, equal.map((b) => b.link));
    for (const group of groups(first.children)) {
      draw(group.flatMap((at) => equal.map((b) => b.children[at]!)));
    }
  };
  for (const root of roots) {
    keep(root, [root]);
    const below = children[root]!.map(branch);
    for (const group of groups(below)) draw(group.map((at) => below[at]!));
  }
  const inTree = new Set([...parent].filter((l) => l >= 0));
  graph.ends.forEach(([a, b], link) => {
    if (inTree.has(link) || result.standsFor[a] !== a || result.standsFor[b] !== b) return;
    result.links.push(link);
    result.linkMembers.set(link, [link]);
  });
  result.nodes.sort((a, b) => a - b);
  result.links.sort((a, b) => a - b);
  return result;
}

/** Indices of equal branches; groups that are too small remain separate. */
function groups(branches: Branch[]): number[][] {
  const bySignature = new Map<string, number[]>();
  branches.forEach((b, i) => {
    const group = bySignature.get(b.signature);
    if (group) group.push(i);
    else bySignature.set(b.signature, [i]);
  });
  return [...bySignature.values()].flatMap((g) => (g.length >= LEAST_EQUAL ? [g] : g.map((i) => [i])));
}

/** Trees attached to the meshed part of the network; without a mesh, to its center. */
function hangingTrees(graph: Graph): { parent: number[]; roots: number[] } {
  const count = graph.names.length;
  const around = graph.names.map((_, v) => new Set(graph.incident[v]!.map((l) => other(graph, l, v)).filter((w) => w !== v)));
  const degree = around.map((a) => a.size);
  const gone = new Array<boolean>(count).fill(false);
  const parent = new Array<number>(count).fill(-1);
  let leaves = degree.flatMap((d, v) => (d === 1 ? [v] : []));
  while (leaves.length > 0) {
    const next: number[] = [];
    for (const v of leaves) {
      if (gone[v] || degree[v] !== 1) continue;
      const w = [...around[v]!].find((u) => !gone[u])!;
      // Parallel links to one neighbor are not a tree.
      const ways = graph.incident[v]!.filter((l) => other(graph, l, v) === w);
      gone[v] = true;
      if (ways.length === 1) parent[v] = ways[0]!;
      degree[v] = 0;
      if (--degree[w]! === 1) next.push(w);
    }
    leaves = next;
  }
  return { parent, roots: parent.flatMap((l, v) => (l < 0 ? [v] : [])) };
}
