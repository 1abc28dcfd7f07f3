// What the page asks the server, in the shapes its OpenAPI description gives. Whatever goes wrong becomes a
// Refused with a sentence for people.

import type { ReportData, TopologyData } from '../lib/types';

export interface About {
  tool: string;
  read_only: boolean;
  scenarios: string;
  records: string;
}

export interface ScenarioEntry {
  name: string;
  title: string;
  description: string;
}

export interface Problem {
  file: string;
  line: number;
  column: number;
  length: number;
  message: string;
  help?: string;
}

export interface Checked {
  sound: boolean;
  problems: Problem[];
  warnings: string[];
  title: string;
  cells: number;
  runs: number;
  duration_s: number;
  expectations: string[];
  plots: string[];
  topology?: TopologyData;
}

export interface Draft {
  name: string;
  text: string;
  seed?: number;
  repeat?: number;
}

export type Stage = 'sim' | 'emu';
export type Phase = 'running' | 'stopping' | 'finished' | 'stopped' | 'failed';

export interface Status {
  id: number;
  scenario: string;
  title: string;
  stage: Stage;
  record: string;
  phase: Phase;
  problem?: string;
  exit?: number;
  done: number;
  total: number;
  left_s?: number;
  doing: string;
}

export interface Shown extends Status {
  cells: string[];
  topology?: TopologyData;
}

export interface RecordEntry {
  name: string;
  state: 'finished' | 'unfinished' | 'unreadable';
  problem?: string;
  title: string;
  description: string;
  stage: string;
  tool: string;
  started: string;
  done: number;
  total: number;
  met: number;
  expected: number;
  void: boolean;
  failed: boolean;
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly help = '',
    readonly problems: Problem[] = [],
  ) {
    super(message);
  }
}

/** Called when the server wants its token. */
let wanted = () => {};
export function onTokenWanted(then: () => void): void {
  wanted = then;
}

async function ask<T>(method: string, path: string, query: Record<string, string> = {}, body?: unknown): Promise<T> {
  const search = new URLSearchParams(query).toString();
  let answer: Response;
  try {
    answer = await fetch(`/api/${path}${search ? `?${search}` : ''}`, {
      method,
      ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
    });
  } catch {
    throw new Refused(0, 'The server does not answer.', 'Is `netstage serve` still running?');
  }
  if (answer.ok) return (answer.status === 204 || answer.status === 202 ? undefined : await answer.json()) as T;
  if (answer.status === 401 && path !== 'session') wanted();
  const told = (await answer.json().catch(() => null)) as { error?: { message: string; help?: string; problems?: Problem[] } } | null;
  throw new Refused(answer.status, told?.error?.message ?? `The server answers ${answer.status}.`, told?.error?.help, told?.error?.problems);
}

export const api = {
  about: () => ask<About>('GET', 'about'),
  enter: (token: string) => ask<void>('POST', 'session', {}, { token }),
  scenarios: () => ask<ScenarioEntry[]>('GET', 'scenarios'),
  scenario: (name: string) => ask<{ text: string }>('GET', 'scenario', { name }),
  keep: (name: string, text: string, before: string | null) => ask<void>('PUT', 'scenario', { name }, { text, before }),
  check: (draft: Draft) => ask<Checked>('POST', 'check', {}, draft),
  runs: () => ask<Status[]>('GET', 'runs'),
  run: (id: number) => ask<Shown>('GET', `runs/${id}`),
  start: (scenario: Draft, stage: Stage) => ask<Status>('POST', 'runs', {}, { scenario, stage }),
  stop: (id: number) => ask<void>('DELETE', `runs/${id}`),
  records: (search: string) => ask<RecordEntry[]>('GET', 'records', { search }),
  record: (name: string) => ask<ReportData>('GET', 'record', { name }),
  compare: (names: string[]) => ask<ReportData>('POST', 'compare', {}, { names }),
  file: (name: string, file: string) => `/api/record/file?${new URLSearchParams({ name, file })}`,
};
