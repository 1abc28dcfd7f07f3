// Layout of a topology. It is deterministic.

import { collapse, identity, type Collapsed } from './collapse';
import { buildGraph, rankNodes, type Graph } from './rank';
import { flowsText, spanOf } from './sort';
import type { TopologyData, TopologyLink } from './types';

export interface PlacedNode {
  name: string;
  kind: string;
  /** Names of all nodes drawn as this one, its own first. */
  members: string[];
  layer: number;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface PlacedLink {
  link: TopologyLink;
  members: TopologyLink[];
  /** Indices into the nodes of the layout. */
  from: number;
  to: number;
  path: string;
  /** Label of the link; null if it would clutter the diagram. */
  label: Label | null;
  /** Maximum over all members. */
  utilization: number | undefined;
}

export interface Label {
  x: number;
  y: number;
  anchor: 'start' | 'middle' | 'end';
  /** Rate, delay, and the number of flows if there are several; empty if the label of an adjacent link holds for all. */
  text: string;
}

export interface Layout {
  nodes: PlacedNode[];
  links: PlacedLink[];
  width: number;
  height: number;
  /** Set if equal branches are drawn as one. */
  collapsed: boolean;
  /** Set if there are branches to collapse. */
  collapsible: boolean;
  /** Links on the path of each VPN, as indices into `links`. */
  vpnLinks: number[][];
}

/** Wider diagrams keep only the labels of links between nodes of one kind. */
const WIDEST = 1390;
const NODE_HEIGHT = 26;
const MARGIN = 12;
const LABELLED = 12;
const LETTER = 7;
const SMALL_LETTER = 5.6;
/** Horizontal space in which a link changes its height. */
const BEND = 56;
const room = (text: string) => 14 + SMALL_LETTER * text.length;

export function layoutTopology(data: TopologyData, expand = false): Layout {
  const graph = buildGraph(data);
  if (graph.names.length === 0) {
    return { nodes: [], links: [], width: 0, height: 0, collapsed: false, collapsible: false, vpnLinks: [] };
  }
  const rank = rankNodes(graph, data);
  const merged = collapse(graph, data, rank);
  const collapsible = merged.nodes.length < graph.names.length;
  const drawn = expand ? identity(graph) : merged;
  const full = place(data, graph, rank, drawn, collapsible, false);
  return full.width <= WIDEST ? full : place(data, graph, rank, drawn, collapsible, true);
}

interface Cell {
  /** Node number, or -1 where a long link crosses a layer. */
  node: number;
  layer: number;
  near: { cell: number; weight: number }[];
  /** Resistance of the node against moves. */
  weight: number;
  y: number;
}

function place(data: TopologyData, graph: Graph, rank: number[], drawn: Collapsed, collapsible: boolean, terse: boolean): Layout {
  const cells: Cell[] = drawn.nodes.map((node) => ({ node, layer: rank[node]!, near: [], weight: 0, y: 0 }));
  const cellOf = new Map(drawn.nodes.map((n, i) => [n, i]));
  const chains = drawn.links.map((link) => {
    let [a, b] = graph.ends[link]!.map((n) => cellOf.get(drawn.standsFor[n]!)!) as [number, number];
    if (cells[a]!.layer > cells[b]!.layer) [a, b] = [b, a];
    const chain = [a];
    for (let layer = cells[a]!.layer + 1; layer < cells[b]!.layer; layer++) {
      chain.push(cells.length);
      cells.push({ node: -1, layer, near: [], weight: 0, y: 0 });
    }
    chain.push(b);
    for (let i = 1; i < chain.length; i++) {
      const [from, to] = [cells[chain[i - 1]!]!, cells[chain[i]!]!];
      from.near.push({ cell: chain[i]!, weight: 1 });
      to.near.push({ cell: chain[i - 1]!, weight: 1 });
    }
    return { link, chain };
  });
  // Links between well-connected nodes, the backbone, are kept straight; the others adapt.
  const degree = cells.map((c) => c.near.length);
  cells.forEach((c, i) => {
    for (const n of c.near) n.weight = Math.min(degree[i]!, degree[n.cell]!) ** 4;
    c.weight = Math.max(1, ...c.near.map((n) => n.weight));
  });
  const layers: number[][] = [];
  cells.forEach((c, i) => (layers[c.layer] ??= []).push(i));
  for (let i = 0; i < layers.length; i++) layers[i] ??= [];
  order(layers, cells);
  spread(layers, cells);
  level(layers, cells);

  const most = Math.max(...layers.map((l) => l.length));
  const pitch = most > 40 ? 30 : most > 12 ? 34 : 46;
  const caption = (n: number) => {
    const more = drawn.members.get(n)!.length;
    return Math.min(18, graph.names[n]!.length) + (more > 1 ? ` ×${more}`.length + 1 : 0);
  };
  const widths = layers.map((layer) =>
    Math.max(48, ...layer.filter((i) => cells[i]!.node >= 0).map((i) => 20 + LETTER * caption(cells[i]!.node))),
  );
  const sameKind = (link: number) => graph.kind[graph.ends[link]![0]] === graph.kind[graph.ends[link]![1]];
  const labels = linkLabels(data, drawn, chains.map((c) => cells[c.chain[0]!]!.layer)).map((text, i) =>
    terse && !sameKind(drawn.links[i]!) ? null : text);
  const gaps = layers.map((_, layer) =>
    Math.max(70, ...chains.map(({ chain }, i) =>
      cells[chain[0]!]!.layer === layer && labels[i] ? BEND + room(labels[i]!) : 0)),
  );
  const left: number[] = [];
  let x = MARGIN;
  layers.forEach((_, layer) => {
    left[layer] = x;
    x += widths[layer]! + (layer < layers.length - 1 ? gaps[layer]! : 0);
  });
  const lowest = Math.min(...cells.map((c) => c.y));
  const highest = Math.max(...cells.map((c) => c.y));
  const top = MARGIN + NODE_HEIGHT / 2 + 8;
  const yOf = (c: Cell) => Math.round((top + (c.y - lowest) * pitch) * 10) / 10;

  const nodes: PlacedNode[] = drawn.nodes.map((n, i) => {
    const c = cells[i]!;
    const width = widths[c.layer]!;
    return {
      name: graph.names[n]!,
      kind: graph.kind[n]!,
      members: drawn.members.get(n)!.map((m) => graph.names[m]!),
      layer: c.layer,
      x: left[c.layer]! + width / 2,
      y: yOf(c),
      width,
      height: NODE_HEIGHT,
    };
  });
  const links: PlacedLink[] = chains.map(({ link, chain }, i) => {
    const members = drawn.linkMembers.get(link)!.map((l) => data.links[l]!);
    const loads = members.flatMap((m) => (m.utilization === undefined ? [] : [m.utilization]));
    const ends = [cells[chain[0]!]!, cells[chain[chain.length - 1]!]!] as const;
    const points = chain.map((c, at): [number, number] => {
      const cell = cells[c]!;
      const middle = left[cell.layer]! + widths[cell.layer]! / 2;
      const half = widths[cell.layer]! / 2;
      const offset = cell.node < 0 ? 0 : at === 0 ? half : -half;
      return [middle + offset, yOf(cell)];
    });
    const sameLayer = ends[0].layer === ends[1].layer;
    if (sameLayer) points[1]![0] = points[0]![0];
    const text = labels[i]!;
    // Links that fan out are horizontal beside their label and bend behind it.
    const gap = gaps[ends[0].layer]!;
    const spreadLeft = degree[chain[0]!]! <= degree[chain.at(-1)!]!;
    const [few, many] = [degree[chain[0]!]!, degree[chain.at(-1)!]!].sort((a, b) => a - b) as [number, number];
    const fansOut = many >= 3 && few < many;
    const level = points[0]![1] === points[1]![1];
    const lead = text === null || level || sameLayer ? 0 : gap - BEND;
    return {
      link: data.links[link]!,
      members,
      from: chain[0]!,
      to: chain[chain.length - 1]!,
      path: sameLayer ? loop(points) : curve(points, lead, spreadLeft),
      label: text === null ? null : labelFor(points, text, lead > 0 || fansOut, spreadLeft, sameLayer),
      utilization: loads.length > 0 ? Math.max(...loads) : undefined,
    };
  });
  const numberOf = new Map(drawn.links.flatMap((l, i) => drawn.linkMembers.get(l)!.map((m) => [m, i] as const)));
  return {
    nodes, links,
    width: Math.ceil(x + MARGIN),
    height: Math.ceil(top + (highest - lowest) * pitch + NODE_HEIGHT / 2 + MARGIN + 4),
    collapsed: drawn.nodes.length < graph.names.length,
    collapsible,
    vpnLinks: (data.vpns ?? []).map((v) => pathLinks(graph, v.path, numberOf)),
  };
}

function pathLinks(graph: Graph, path: string[], numberOf: Map<number, number>): number[] {
  const found: number[] = [];
  for (let i = 1; i < path.length; i++) {
    const a = graph.index.get(path[i - 1]!);
    const b = graph.index.get(path[i]!);
    if (a === undefined || b === undefined) continue;
    const link = graph.incident[a]!.find((l) => graph.ends[l]!.includes(b));
    if (link !== undefined && numberOf.has(link)) found.push(numberOf.get(link)!);
  }
  return [...new Set(found)];
}

/** Sorts each layer by the mean position of its neighbors, alternately from both sides, to reduce crossings. */
function order(layers: number[][], cells: Cell[]): void {
  const placeIn = new Array<number>(cells.length).fill(0);
  const number = (layer: number[]) => layer.forEach((c, i) => (placeIn[c] = i - (layer.length - 1) / 2));
  layers.forEach(number);
  const sweep = (layer: number[], toward: number) => {
    const mean = new Map(layer.map((c) => {
      const near = cells[c]!.near.map((n) => n.cell).filter((n) => Math.sign(cells[n]!.layer - cells[c]!.layer) === toward);
      return [c, near.length > 0 ? near.reduce((sum, n) => sum + placeIn[n]!, 0) / near.length : placeIn[c]!] as const;
    }));
    layer.sort((a, b) => mean.get(a)! - mean.get(b)! || placeIn[a]! - placeIn[b]!);
    number(layer);
  };
  for (let round = 0; round < 4; round++) {
    for (let i = 1; i < layers.length; i++) sweep(layers[i]!, -1);
    for (let i = layers.length - 2; i >= 0; i--) sweep(layers[i]!, 1);
  }
}

/** Moves nodes toward the mean position of their neighbors, at least one row apart, without changing their order. */
function spread(layers: number[][], cells: Cell[]): void {
  for (const layer of layers) {
    // The backbone starts on one line.
    const most = Math.max(...layer.map((c) => cells[c]!.weight));
    const strongest = layer.flatMap((c, i) => (cells[c]!.weight === most ? [i] : []));
    const middle = (strongest[0]! + strongest.at(-1)!) / 2;
    layer.forEach((c, i) => (cells[c]!.y = i - middle));
  }
  for (let round = 0; round < 120; round++) {
    const sequence = round % 2 === 0 ? layers : [...layers].reverse();
    for (const layer of sequence) {
      const wanted = layer.map((c) => {
        const { near, y } = cells[c]!;
        const total = near.reduce((sum, n) => sum + n.weight, 0);
        return total > 0 ? near.reduce((sum, n) => sum + n.weight * cells[n.cell]!.y, 0) / total : y;
      });
      apart(wanted, layer.map((c) => cells[c]!.weight)).forEach((y, i) => (cells[layer[i]!]!.y = y));
    }
  }
}

/** Aligns backbone nodes that are almost on one line, if the space is free. */
function level(layers: number[][], cells: Cell[]): void {
  const hub = (c: number) => cells[c]!.near.length >= 3;
  const seen = new Set<number>();
  for (const start of cells.keys()) {
    if (!hub(start) || seen.has(start)) continue;
    const line = [start];
    seen.add(start);
    for (let i = 0; i < line.length; i++) {
      for (const { cell } of cells[line[i]!]!.near) {
        if (!hub(cell) || seen.has(cell) || Math.abs(cells[cell]!.y - cells[line[i]!]!.y) > 0.5) continue;
        if (line.some((c) => cells[c]!.layer === cells[cell]!.layer)) continue;
        seen.add(cell);
        line.push(cell);
      }
    }
    const y = line.reduce((sum, c) => sum + cells[c]!.y, 0) / line.length;
    const free = line.every((c) => layers[cells[c]!.layer]!.every((o) => o === c || (Math.abs(cells[o]!.y - y) > 0.8 && cells[o]!.y < y === cells[o]!.y < cells[c]!.y)));
    if (free) for (const c of line) cells[c]!.y = y;
  }
}

/**
 * Returns the positions nearest to the wanted ones (least squares) with the same order and a minimum distance of one.
 */
export function apart(wanted: number[], weights: number[] = wanted.map(() => 1)): number[] {
  const blocks: { sum: number; weight: number; count: number }[] = [];
  wanted.forEach((w, i) => {
    let block = { sum: (w - i) * weights[i]!, weight: weights[i]!, count: 1 };
    for (let last = blocks.at(-1); last && last.sum / last.weight > block.sum / block.weight; last = blocks.at(-1)) {
      block = { sum: block.sum + last.sum, weight: block.weight + last.weight, count: block.count + last.count };
      blocks.pop();
    }
    blocks.push(block);
  });
  return blocks.flatMap((b) => new Array<number>(b.count).fill(b.sum / b.weight)).map((y, i) => y + i);
}

/**
 * Returns the labels with rate and delay where there is space: one for links with equal values, '' for the others of
 * them, and null for links without a label.
 */
function linkLabels(data: TopologyData, drawn: Collapsed, layerOf: number[]): (string | null)[] {
  const texts = drawn.links.map((link): string | null => {
    const members = drawn.linkMembers.get(link)!.map((l) => data.links[l]!);
    const flows = members.some((m) => (m.flows ?? 0) > 1) ? spanOf(members.map((m) => flowsText(m.flows) || 'no flows')) : '';
    return [spanOf(members.map((m) => m.rate)), spanOf(members.map((m) => m.delay)), flows].filter((p) => p !== '').join(' · ');
  });
  const byGap = new Map<number, number[]>();
  layerOf.forEach((layer, i) => byGap.set(layer, [...(byGap.get(layer) ?? []), i]));
  for (const inGap of byGap.values()) {
    const equal = inGap.length > 2 && inGap.every((i) => texts[i] === texts[inGap[0]!]);
    inGap.forEach((i, nth) => {
      if (equal) texts[i] = nth === 0 && texts[i] ? `each ${texts[i]}` : inGap.length > LABELLED ? null : '';
      else if (inGap.length > LABELLED) texts[i] = null;
    });
  }
  return texts;
}

function curve(points: [number, number][], lead: number, spreadLeft: boolean): string {
  const line = points.map(([x, y]): [number, number] => [x, y]);
  if (lead > 0) {
    if (spreadLeft) line.splice(1, 0, [line[0]![0] + lead, line[0]![1]]);
    else line.splice(line.length - 1, 0, [line.at(-1)![0] - lead, line.at(-1)![1]]);
  }
  let path = `M${line[0]!.join()}`;
  for (let i = 1; i < line.length; i++) {
    const [xa, ya] = line[i - 1]!;
    const [xb, yb] = line[i]!;
    const middle = (xa + xb) / 2;
    path += ya === yb ? `L${xb},${yb}` : `C${middle},${ya},${middle},${yb},${xb},${yb}`;
  }
  return path;
}

function loop([a, b]: [number, number][]): string {
  const out = 28;
  return `M${a!.join()}C${a![0] + out},${a![1]},${b![0] + out},${b![1]},${b!.join()}`;
}

function labelFor(points: [number, number][], text: string, atEnd: boolean, spreadLeft: boolean, sameLayer: boolean): Label {
  const [first, last] = [points[0]!, points.at(-1)!];
  if (sameLayer) return { x: first[0] + 26, y: (first[1] + last[1]) / 2, anchor: 'start', text };
  if (!atEnd) return { x: (first[0] + points[1]![0]) / 2, y: (first[1] + points[1]![1]) / 2, anchor: 'middle', text };
  return spreadLeft ? { x: first[0] + 8, y: first[1], anchor: 'start', text } : { x: last[0] - 8, y: last[1], anchor: 'end', text };
}
