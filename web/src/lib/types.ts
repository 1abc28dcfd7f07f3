// Schema of the report data. Additions are optional fields; any other change increments `schema`.

export interface ReportData {
  schema: 1;
  title: string;
  subtitle?: string;
  tool: string;
  warnings: string[];
  facts: Fact[];
  expectations: Expectation[];
  /** Reason why the verdicts are invalid: "the measurement is void". */
  void?: string;
  tables: TableData[];
  topology?: TopologyData;
  figures: FigureData[];
  scenario?: string;
}

export interface Fact {
  name: string;
  value: string;
}

export interface Expectation {
  name: string;
  metric: string;
  condition: string;
  achieved: string;
  claim?: string;
  /** Reason given for an expectation that is not met. */
  missed?: string;
  pass: boolean;
  cell?: string;
}

export interface Column {
  name: string;
  unit?: string;
  align?: 'left' | 'right';
}

export interface TableData {
  title: string;
  note?: string;
  columns: Column[];
  rows: string[][];
}

export interface TopologyNode {
  name: string;
  kind: string;
}

export interface TopologyLink {
  name: string;
  ends: [string, string];
  rate: string;
  delay: string;
  /** Flows that cross the link in either direction; absent in older records. */
  flows?: number;
  /** 0 to 1. */
  utilization?: number;
}

export interface TopologyVpn {
  name: string;
  /** Omitted if it differs between cells. */
  weight?: number;
  /** Node names, ingress first. */
  path: string[];
}

export interface TopologyData {
  nodes: TopologyNode[];
  links: TopologyLink[];
  vpns?: TopologyVpn[];
  /** Node names on the paths of flows, sender first; absent in older records and if there are VPNs. */
  paths?: string[][];
}

/** Load of a link at one moment of a run. */
export interface Load {
  /** 0 to 1, of the busier direction. */
  utilization: number;
  /** Packets in the longer of both queues. */
  queue: number;
}

/** Throughput of a VPN at one moment of a run. */
export interface Share {
  /** Rate with its unit. */
  text: string;
  /** Share of the total of all VPNs, 0 to 1. */
  part: number;
}

export interface Axis {
  label: string;
  unit?: string;
  /** `nines`: a share p is drawn at 1 / (1 − p) on a log scale, and labeled as a percentage. */
  scale?: 'linear' | 'log' | 'nines';
  min?: number;
  max?: number;
}

export interface Series {
  name: string;
  /** Ascending. If omitted, the figure's `shared_x` is used. */
  x?: number[];
  y: (number | null)[];
  low?: (number | null)[];
  high?: (number | null)[];
  dashed?: boolean;
  /** Marks without a line. */
  points?: boolean;
  /** Series of a group are listed together in the legend; `looks` assigns their colors. */
  group?: string;
}

export interface ReferenceLine {
  value: number;
  label: string;
}

export interface FigureData {
  name: string;
  title: string;
  /** Description of the plotted values. */
  caption?: string;
  /** Claim of the paper. */
  claim?: string;
  /** `box`: the series are the percentiles 5, 25, 50, 75 and 95. */
  kind: 'line' | 'bar' | 'heatmap' | 'box';
  x: Axis;
  y: Axis;
  /** Meaning of the intervals and marks; absent: 95 % confidence intervals of means over runs. */
  intervals?: string;
  series: Series[];
  shared_x?: number[];
  /** Names of the x positions of bars and heat maps. */
  categories?: string[];
  y_categories?: string[];
  /** Heat map: `cells[row][column]`, the first row at the bottom. */
  cells?: (number | null)[][];
  /** Heat map: quantity of the cells, and range of the color scale. */
  value?: Axis;
  /** Horizontal lines. */
  reference_lines?: ReferenceLine[];
}
