// The data contract with the binary. Additions are optional fields; anything else raises `schema`.

export interface ReportData {
  schema: 1;
  title: string;
  subtitle?: string;
  tool: string;
  warnings: string[];
  facts: Fact[];
  expectations: Expectation[];
  /** What the verdicts cannot rest on: "the measurement is void". */
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
  /** 0 to 1. */
  utilization?: number;
}

export interface TopologyVpn {
  name: string;
  /** None where it is not the same in all cells. */
  weight?: number;
  /** Node names, ingress first. */
  path: string[];
}

export interface TopologyData {
  nodes: TopologyNode[];
  links: TopologyLink[];
  vpns?: TopologyVpn[];
}

/** How a link is at a moment of a run. */
export interface Load {
  /** 0 to 1, of the busier direction. */
  utilization: number;
  /** Packets that wait, of the longer queue. */
  queue: number;
}

/** What a VPN gets at a moment of a run. */
export interface Share {
  /** Its rate. */
  text: string;
  /** Its part of what all get, 0 to 1. */
  part: number;
}

export interface Axis {
  label: string;
  unit?: string;
  /** `nines`: a share p of all stands at 1 / (1 − p), on a log scale, and is labelled as a percentage. */
  scale?: 'linear' | 'log' | 'nines';
  min?: number;
  max?: number;
}

export interface Series {
  name: string;
  /** Ascending. Left out, the figure's `shared_x` holds. */
  x?: number[];
  y: (number | null)[];
  low?: (number | null)[];
  high?: (number | null)[];
  dashed?: boolean;
  /** Marks that no line joins. */
  points?: boolean;
  /** Series of one group stand together in the legend; see `looks` for what it does to colours. */
  group?: string;
}

export interface ReferenceLine {
  value: number;
  label: string;
}

export interface FigureData {
  name: string;
  title: string;
  /** What is plotted. */
  caption?: string;
  /** What the paper claims. */
  claim?: string;
  kind: 'line' | 'bar' | 'heatmap';
  x: Axis;
  y: Axis;
  series: Series[];
  shared_x?: number[];
  /** Names of the x positions of bars and heat maps. */
  categories?: string[];
  y_categories?: string[];
  /** Heat map: `cells[row][column]`, the first row at the bottom. */
  cells?: (number | null)[][];
  /** Heat map: what the cells hold, and the range of the colours. */
  value?: Axis;
  /** Horizontal. */
  reference_lines?: ReferenceLine[];
}
