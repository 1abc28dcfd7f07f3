// Writes report-data.json: synthetic numbers in the schema of a report, identical on every run.

import { writeFileSync } from 'node:fs';

let state = 20020401;
const random = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
const noise = () => random() + random() + random() - 1.5;
const round = (v, digits = 4) => Number(v.toPrecision(digits));
const time = Array.from({ length: 50 }, (_, i) => i + 0.5);

const cells = [0.1, 0.25].flatMap((b) => [0.01, 0.1, 1].map((a) => ({ a, b, name: `a = ${a}, b₁ = ${b}` })));
const fairness = cells.flatMap(({ a, b, name }, k) => {
  const settle = 1.6 + 0.5 * k;
  const level = 0.968 - 0.014 * (a === 1 ? 2 : a === 0.1 ? 0.6 : 0) - 0.006 * (b > 0.2);
  const y = time.map((t) => (t < 5 ? null : round(Math.min(0.995, level - 0.32 * Math.exp(-(t - 5) / settle) + 0.006 * noise()))));
  const half = time.map((t) => 0.008 + 0.05 * Math.exp(-(Math.max(5, t) - 5) / 3));
  const bound = (sign) => y.map((v, i) => (v === null ? null : round(Math.min(1, v + sign * half[i]))));
  const used = time.map((t) => (t < 5 ? null : round(Math.min(0.99, 0.955 - 0.02 * k / 5 - 0.25 * Math.exp(-(t - 5) / 2) + 0.008 * noise()))));
  return [
    { name: 'fairness', group: name, y, low: bound(-1), high: bound(1) },
    { name: 'utilization', group: name, y: used, dashed: true },
  ];
});

const weights = [1, 2, 2, 3, 4];
const throughput = weights.map((w, i) => {
  const share = (35e6 * w) / 12;
  const y = time.map((t) => (t < 5 ? 0 : round(share * (1 + (i - 2) * 0.35 * Math.exp(-(t - 5) / 4)) + 5e5 * noise())));
  return {
    name: `vpn${i + 1}, weight ${w}`, y,
    low: y.map((v) => (v === 0 ? 0 : round(v - 7e5))),
    high: y.map((v) => (v === 0 ? 0 : round(v + 7e5))),
  };
});

const fine = Array.from({ length: 2000 }, (_, i) => round(i * 0.025, 6));
const walk = (start, pull, center, size) => {
  let q = start;
  return fine.map((t) => {
    if (t < 5) return 0;
    q = Math.max(0, Math.min(50, q + pull * (center - q) + size * noise()));
    return round(q, 3);
  });
};
const queues = [
  { name: 'core1 → core2, no control', y: walk(45, 0.05, 43, 6) },
  { name: 'core1 → core2, I2VFC', y: walk(20, 0.04, 6, 3) },
  { name: 'pe5, I2VFC', x: fine.filter((_, i) => i % 4 === 0), y: walk(5, 0.02, 27, 4).filter((_, i) => i % 4 === 0), dashed: true },
];

const as = [0.1, 0.5, 1, 5];
const bs = [0.1, 0.25, 0.5, 0.75];
const intra = bs.map((b, r) => as.map((a, c) => (r === 3 && c === 3 ? null : round(0.985 - 0.012 * r - 0.018 * c - 0.008 * r * c, 3))));
const vpns = [2, 5, 10, 20, 50, 100];

const nodes = [];
const links = [];
const delays = ['50 ms', '25 ms', '75 ms', '50 ms', '25 ms'];
for (let i = 1; i <= 5; i++) nodes.push({ name: `h${i}`, kind: 'host' }, { name: `pe${i}`, kind: 'pe' });
nodes.push({ name: 'core1', kind: 'router' }, { name: 'core2', kind: 'router' });
for (let i = 6; i <= 10; i++) nodes.push({ name: `pe${i}`, kind: 'pe' }, { name: `r${i - 5}`, kind: 'host' });
for (let i = 1; i <= 5; i++) {
  const load = (35 * weights[i - 1]) / 12;
  links.push(
    { name: `host${i}`, ends: [`h${i}`, `pe${i}`], rate: '1 Gbit/s', delay: '0.1 ms', utilization: round(load / 1000, 3) },
    { name: `access${i}`, ends: [`pe${i}`, 'core1'], rate: '100 Mbit/s', delay: delays[i - 1], utilization: round(load / 100, 3) },
    { name: `egress${i}`, ends: [`pe${i + 5}`, 'core2'], rate: '100 Mbit/s', delay: '1 ms', utilization: round(load / 100, 3) },
    { name: `sink${i}`, ends: [`r${i}`, `pe${i + 5}`], rate: '1 Gbit/s', delay: '0.1 ms', utilization: round(load / 1000, 3) },
  );
}
links.push({ name: 'core', ends: ['core1', 'core2'], rate: '50 Mbit/s', delay: '10 ms', utilization: 0.955 });

const data = {
  schema: 1,
  title: 'I2VFC, one bottleneck',
  subtitle: 'Five VPNs of 30 TCP flows share 50 Mbit/s by weight, with 30 % of background traffic',
  tool: 'netstage 0.1.0',
  warnings: ['In cell a = 1, b₁ = 0.25 the generator of vpn4 fell 2.1 % short of the load it was asked for; read its figures with that in mind.'],
  facts: [
    { name: 'Stage', value: 'sim' },
    { name: 'Duration', value: '50 s' },
    { name: 'Seeds', value: '1 to 10' },
    { name: 'Cells', value: '6' },
    { name: 'TCP', value: 'NewReno with SACK' },
    { name: 'Interval', value: '1 s' },
    { name: 'Confidence', value: '95 %, within 2 % of each F' },
    { name: 'Packets', value: '41 207 113' },
  ],
  expectations: [
    ...cells.map((c) => ({
      name: 'fair', metric: 'fairness.inter_vpn', condition: 'at least 0.9 from 10 s to 50 s',
      achieved: c.a === 1 ? '0.938 ± 0.011' : '0.962 ± 0.006', claim: 'F ≥ 0.9 for every a and b', pass: true, cell: c.name,
    })),
    { name: 'used', metric: 'link.core.utilization', condition: 'at least 0.94', achieved: '0.931 ± 0.004', pass: false, cell: 'a = 1, b₁ = 0.25' },
  ],
  tables: [
    {
      title: 'Summary by cell',
      note: 'Mean of ten seeds from 10 s to 50 s, with the half-width of the 95 % confidence interval. Throughput is that of the payload.',
      columns: [
        { name: 'Cell' }, { name: 'Fairness', align: 'right' }, { name: 'Utilization', unit: '%', align: 'right' },
        ...weights.map((_, i) => ({ name: `vpn${i + 1}`, unit: 'Mbit/s', align: 'right' })),
        { name: 'Core drops', unit: 'packets', align: 'right' },
      ],
      rows: cells.map((c, k) => [
        c.name, `${(0.968 - 0.007 * k).toFixed(3)} ± 0.00${4 + k}`, (95.5 - 0.5 * k).toFixed(1),
        ...weights.map((w) => ((35 * w) / 12 + 0.08 * noise()).toFixed(2)), String(1204 + 977 * k),
      ]),
    },
  ],
  topology: {
    nodes, links,
    vpns: weights.map((weight, i) => ({ name: `vpn${i + 1}`, weight, path: [`pe${i + 1}`, 'core1', 'core2', `pe${i + 6}`] })),
  },
  figures: [
    {
      name: 'fairness', kind: 'line', title: 'Fairness between VPNs',
      caption: 'Weighted fairness index over all flows in 1 s bins, mean of ten seeds with its 95 % confidence interval; dashed, the utilization of the bottleneck in the same cell.',
      claim: 'F is 0.9 or more for every a and b; with a = 1 the transient is slightly worse.',
      x: { label: 'Time', unit: 's', min: 0, max: 50 }, y: { label: 'Fairness, utilization', min: 0.5, max: 1 },
      shared_x: time, series: fairness, reference_lines: [{ value: 0.9, label: 'claimed: 0.9' }],
    },
    {
      name: 'throughput', kind: 'line', title: 'Throughput of each VPN',
      caption: 'Payload throughput in 1 s bins, cell a = 0.1, b₁ = 0.1.',
      x: { label: 'Time', unit: 's' }, y: { label: 'Throughput', unit: 'bit/s' }, shared_x: time, series: throughput,
    },
    {
      name: 'queues', kind: 'line', title: 'Queues of the core and of a provider edge',
      caption: 'Queue lengths every 25 ms (pe5 every 100 ms), seed 1. With control the congestion moves from the core to the edge.',
      claim: 'The congestion of the core moves to the queues of the PE routers.',
      x: { label: 'Time', unit: 's' }, y: { label: 'Queue', unit: 'packets', min: 0 }, shared_x: fine, series: queues,
      reference_lines: [{ value: 50, label: 'buffer' }],
    },
    {
      name: 'intra', kind: 'heatmap', title: 'Fairness within VPNs by a and b',
      caption: "Jain's index pooled over all TCP flows of the network, two flows per VPN. The crossed cell did not finish.",
      claim: 'Better than the 0.748 without control in every cell, best at small a and b.',
      x: { label: 'a' }, y: { label: 'b' }, value: { label: 'Fairness' }, series: [],
      categories: as.map(String), y_categories: bs.map(String), cells: intra,
    },
    {
      name: 'control', kind: 'bar', title: 'Fairness within VPNs with and without control',
      caption: "Jain's index, pooled and per VPN, with 95 % confidence intervals.",
      x: { label: 'TCP flows per VPN' }, y: { label: 'Fairness', min: 0, max: 1 },
      categories: ['2', '4', '6', '8', '10'],
      series: [
        { name: 'without control', y: [0.748, 0.71, 0.672, 0.64, 0.604], low: [0.73, 0.69, 0.65, 0.62, 0.58], high: [0.766, 0.73, 0.694, 0.66, 0.628] },
        { name: 'I2VFC', y: [0.961, 0.948, 0.94, 0.931, 0.924], low: [0.95, 0.94, 0.93, 0.92, 0.91], high: [0.972, 0.956, 0.95, 0.942, 0.938] },
      ],
      reference_lines: [{ value: 0.748, label: 'paper, 2 flows without control' }],
    },
    {
      name: 'cpu', kind: 'line', title: 'Processor time against VPNs',
      caption: 'Processor time over 180 s at 100 Mbit/s.', claim: 'Linear in the number of VPNs.',
      x: { label: 'VPNs', scale: 'log' }, y: { label: 'Processor time', unit: 's', scale: 'log' }, shared_x: vpns,
      series: [
        { name: 'ingress', y: vpns.map((n) => round(0.9 + 0.1 * n, 3)), low: vpns.map((n) => round(0.8 + 0.095 * n, 3)), high: vpns.map((n) => round(1 + 0.105 * n, 3)) },
        { name: 'egress', y: vpns.map((n) => round(0.4 + 0.031 * n, 3)), low: vpns.map((n) => round(0.36 + 0.03 * n, 3)), high: vpns.map((n) => round(0.44 + 0.033 * n, 3)) },
      ],
    },
  ],
  scenario: `# Five VPNs over one bottleneck.
[scenario]
title = "I2VFC, one bottleneck"
duration = "50 s"
seed = 1
repeat = 10

[node.pe1]
kind = "pe"

[link.access1]
ends = ["pe1", "core1"]
rate = "100 Mbit/s"
delay = "50 ms"                  # one way

[link.core]
ends = ["core1", "core2"]
rate = "50 Mbit/s"
delay = "10 ms"
buffer = "50 packets"

[vpn.vpn1]
weight = 1.0
ingress = "pe1"
egress = "pe6"
control = { kind = "i2vfc", increase = 0.1, decrease = 0.1, report_every = 4 }

[flow.bulk1]
from = "h1"
to = "r1"
vpn = "vpn1"
transport = "tcp"
traffic = { model = "bulk" }
count = 30
start = "5 s"

[sweep]
"vpn.*.control.increase" = [0.01, 0.1, 1.0]
"vpn.vpn1.control.decrease" = [0.1, 0.25]

[expect.fair]
metric = "fairness.inter_vpn"
over = ["10 s", "50 s"]
at_least = 0.9
`,
};

writeFileSync(new URL('report-data.json', import.meta.url), `${JSON.stringify(data)}\n`);
