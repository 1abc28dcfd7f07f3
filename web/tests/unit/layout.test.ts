import { describe, expect, test } from 'vitest';
import { apart, layoutTopology } from '../../src/lib/layout';
import { buildGraph, rankNodes } from '../../src/lib/rank';
import { groupName } from '../../src/lib/sort';
import type { TopologyData } from '../../src/lib/types';

function dumbbell(count: number, delay: (i: number) => string = () => '5 ms', withVpns = true): TopologyData {
  const nodes = [{ name: 'core1', kind: 'router' }, { name: 'core2', kind: 'router' }];
  const links: TopologyData['links'] = [{ name: 'core', ends: ['core1', 'core2'], rate: '50 Mbit/s', delay: '10 ms', utilization: 0.9 }];
  const vpns = [];
  for (let i = 1; i <= count; i++) {
    nodes.push({ name: `h${i}`, kind: 'host' }, { name: `pe${i}`, kind: 'pe' }, { name: `pe${count + i}`, kind: 'pe' }, { name: `r${i}`, kind: 'host' });
    links.push(
      { name: `host${i}`, ends: [`h${i}`, `pe${i}`], rate: '1 Gbit/s', delay: '0 ms' },
      { name: `access${i}`, ends: [`pe${i}`, 'core1'], rate: '100 Mbit/s', delay: delay(i), utilization: i / 100 },
      // Written from the outer nodes inward on both sides, as people do.
      { name: `egress${i}`, ends: [`pe${count + i}`, 'core2'], rate: '100 Mbit/s', delay: '1 ms' },
      { name: `sink${i}`, ends: [`r${i}`, `pe${count + i}`], rate: '1 Gbit/s', delay: '0 ms' },
    );
    vpns.push({ name: `vpn${i}`, weight: 1, path: [`pe${i}`, 'core1', 'core2', `pe${count + i}`] });
  }
  return { nodes, links, ...(withVpns ? { vpns } : {}) };
}

function ranks(data: TopologyData): Record<string, number> {
  const graph = buildGraph(data);
  const rank = rankNodes(graph, data);
  return Object.fromEntries(graph.names.map((n, i) => [n, rank[i]!]));
}

describe('layers', () => {
  test.each([true, false])('hosts, edges, core, edges, hosts (paths given: %s)', (withVpns) => {
    const rank = ranks(dumbbell(5, undefined, withVpns));
    for (let i = 1; i <= 5; i++) {
      expect([rank[`h${i}`], rank[`pe${i}`], rank[`pe${i + 5}`], rank[`r${i}`]]).toEqual([0, 1, 4, 5]);
    }
    expect([rank.core1, rank.core2]).toEqual([2, 3]);
  });

  test('parking lot: each VPN enters next to its first link', () => {
    const vpns = [
      ['pe1', 'c1', 'c2', 'c3', 'c4', 'pe5'], ['pe2', 'c1', 'c2', 'pe6'], ['pe3', 'c2', 'c3', 'pe7'], ['pe4', 'c3', 'c4', 'pe8'],
    ].map((path, i) => ({ name: `vpn${i + 1}`, weight: 1, path }));
    const pairs = new Set(vpns.flatMap((v) => v.path.slice(1).map((n, i) => `${v.path[i]} ${n}`)));
    const links = [...pairs].map((p) => ({ name: p, ends: p.split(' ') as [string, string], rate: '10 Mbit/s', delay: '0 ms' }));
    const names = [...new Set(vpns.flatMap((v) => v.path))];
    const data = { nodes: names.map((name) => ({ name, kind: name.startsWith('c') ? 'router' : 'pe' })), links, vpns };
    const rank = ranks(data);
    expect([rank.c1, rank.c2, rank.c3, rank.c4]).toEqual([1, 2, 3, 4]);
    expect([rank.pe1, rank.pe2, rank.pe3, rank.pe4]).toEqual([0, 0, 1, 2]);
    expect([rank.pe5, rank.pe6, rank.pe7, rank.pe8]).toEqual([5, 3, 4, 5]);
    const layout = layoutTopology(data);
    const y = layout.nodes.filter((n) => n.kind === 'router').map((n) => n.y);
    expect(new Set(y).size).toBe(1);
  });

  test('paths in both directions, a ring, an isolated node, and a link to an unknown node', () => {
    const data: TopologyData = {
      nodes: ['a', 'b', 'c', 'alone'].map((name) => ({ name, kind: 'router' })),
      links: [['a', 'b'], ['b', 'c'], ['c', 'a'], ['c', 'outside']].map((ends) => ({ name: ends.join('-'), ends: ends as [string, string], rate: '1', delay: '1' })),
      vpns: [{ name: 'there', weight: 1, path: ['a', 'b', 'c'] }, { name: 'back', weight: 1, path: ['c', 'b', 'a'] }],
    };
    const rank = ranks(data);
    expect([rank.a, rank.b, rank.c, rank.outside]).toEqual([0, 1, 2, 3]);
    expect(rank.alone).toBeGreaterThanOrEqual(0);
    expect(layoutTopology(data).nodes).toHaveLength(5);
  });
});

describe('layout', () => {
  test('the layout is deterministic', () => {
    expect(layoutTopology(dumbbell(7))).toEqual(layoutTopology(dumbbell(7)));
  });

  test('nodes do not overlap and are inside the drawing', () => {
    for (const data of [dumbbell(5), dumbbell(9, (i) => `${i} ms`), dumbbell(50)]) {
      for (const expand of [false, true]) {
        const { nodes, width, height } = layoutTopology(data, expand);
        for (const n of nodes) {
          expect(n.x - n.width / 2).toBeGreaterThanOrEqual(0);
          expect(n.x + n.width / 2).toBeLessThanOrEqual(width);
          expect(n.y - n.height / 2).toBeGreaterThanOrEqual(0);
          expect(n.y + n.height / 2).toBeLessThanOrEqual(height);
        }
        const sorted = [...nodes].sort((a, b) => a.layer - b.layer || a.y - b.y);
        for (let i = 1; i < sorted.length; i++) {
          if (sorted[i]!.layer === sorted[i - 1]!.layer) expect(sorted[i]!.y - sorted[i - 1]!.y).toBeGreaterThan(sorted[i]!.height);
        }
      }
    }
  });

  test('few branches are drawn separately, many equal ones as one', () => {
    expect(layoutTopology(dumbbell(10)).nodes).toHaveLength(42);
    const { nodes, links, collapsed } = layoutTopology(dumbbell(50));
    expect(collapsed).toBe(true);
    expect(nodes.map((n) => [n.name, n.members.length])).toEqual([
      ['core1', 1], ['core2', 1], ['h1', 50], ['pe1', 50], ['pe51', 50], ['r1', 50],
    ]);
    expect(links.map((l) => l.members.length)).toEqual([1, 50, 50, 50, 50]);
    expect(links.find((l) => l.link.name === 'access1')!.utilization).toBe(0.5);
    const pe1 = nodes.find((n) => n.name === 'pe1')!;
    const h1 = nodes.find((n) => n.name === 'h1')!;
    pe1.members.forEach((pe, i) => expect(h1.members[i]).toBe(pe.replace('pe', 'h')));
  });

  test('branches with different delays are merged only if there are too many', () => {
    const some = layoutTopology(dumbbell(20, (i) => (i === 7 ? '90 ms' : '5 ms')));
    expect(some.nodes.filter((n) => n.kind === 'pe').map((n) => n.members.length)).toEqual([19, 20, 1]);
    const all = layoutTopology(dumbbell(40, (i) => `${i} ms`));
    expect(all.nodes).toHaveLength(6);
    expect(all.links.find((l) => l.link.name === 'access1')!.label!.text).toBe('100 Mbit/s · 1 ms … 40 ms');
  });

  test('an incast shows its clients and the flows of each link', () => {
    const clients = Array.from({ length: 32 }, (_, i) => `client${i}`);
    const layout = layoutTopology({
      nodes: [...clients.map((name) => ({ name, kind: 'host' })), { name: 'switch', kind: 'router' }, { name: 'server', kind: 'host' }],
      links: [
        ...clients.map((name, i) => ({ name: `access${i}`, ends: [name, 'switch'] as [string, string], rate: '1 Gbit/s', delay: '10 µs', flows: 1 })),
        { name: 'server', ends: ['switch', 'server'], rate: '1 Gbit/s', delay: '10 µs', flows: 32 },
      ],
      paths: clients.map((name) => [name, 'switch', 'server']),
    });
    expect(layout.nodes.map((n) => n.layer)).toEqual([0, 1, 2]);
    expect(layout.nodes.map((n) => [groupName(n.members), n.members.length])).toEqual([['client', 32], ['switch', 1], ['server', 1]]);
    expect(layout.links.map((l) => [l.members.length, l.label!.text])).toEqual([
      [32, '1 Gbit/s · 10 µs'], [1, '1 Gbit/s · 10 µs · 32 flows'],
    ]);
    expect([groupName(['a', 'b']), groupName(['bulk[0]', 'bulk[1]']), groupName(['7', '8'])]).toEqual(['a', 'bulk', '7']);
  });

  test('all branches are drawn on request', () => {
    const layout = layoutTopology(dumbbell(50), true);
    expect(layout.nodes).toHaveLength(202);
    expect(layout.collapsed).toBe(false);
    expect(layout.collapsible).toBe(true);
  });

  test('a VPN has its links, merged or not', () => {
    for (const expand of [true, false]) {
      const { links, vpnLinks } = layoutTopology(dumbbell(50), expand);
      expect(vpnLinks).toHaveLength(50);
      expect(vpnLinks[8]!.map((l) => links[l]!.members.map((m) => m.name)).every((names) => names.some((n) => ['access9', 'core', 'egress9'].includes(n)))).toBe(true);
      expect(vpnLinks[8]).toHaveLength(3);
    }
  });

  test('empty topology', () => {
    expect(layoutTopology({ nodes: [], links: [] }).nodes).toEqual([]);
  });
});

test('rows keep their order and distance, near to their wanted positions', () => {
  expect(apart([0, 5, 9])).toEqual([0, 5, 9]);
  expect(apart([0, 0, 0])).toEqual([-1, 0, 1]);
  expect(apart([5, 0])).toEqual([2, 3]);
  expect(apart([0, 0], [1000, 1])[0]).toBeCloseTo(0, 2);
});
