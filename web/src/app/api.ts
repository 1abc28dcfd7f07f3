// Requests to the server, with the types of its OpenAPI description. Every failure becomes a Refused with a readable
// message.

import type { ReportData, TopologyData } from '../lib/types';
import type { RunEvent } from './live';

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
  /** Reason why the stage cannot run a valid scenario. */
  refusal: string;
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

export interface Agent {
  name: string;
  labels: string[];
  host: string;
  version: string;
  state: 'never-seen' | 'offline' | 'idle' | 'taken';
  last_seen_s?: number;
  clock_error_s?: number;
  is_clock_synchronized?: boolean;
  certificate_expires_s: number;
}

export interface FleetState {
  exists: boolean;
  served: boolean;
  agents: Agent[];
}

export type Stage = 'sim' | 'emu' | 'live';
export type Phase = 'running' | 'stopping' | 'finished' | 'stopped' | 'failed';

export interface Status {
  id: number;
  /** Increases with every change. */
  version: number;
  scenario: string;
  title: string;
  stage: Stage;
  record: string;
  phase: Phase;
  problem?: string;
  exit?: number;
  done: number;
  total: number;
  in_progress: number;
  left_s?: number;
  doing: string;
}

export interface Shown extends Status {
  cells: string[];
  topology?: TopologyData;
  /** Weights of the VPNs of each cell. */
  weights: Record<string, number>[];
}

export interface StudyUpdate {
  status: Status;
  events: RunEvent[];
  /** Value of `after` for the next request. */
  next: string;
}

export interface RecordEntry {
  name: string;
  state: 'finished' | 'unfinished' | 'damaged' | 'unreadable';
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

/** Called when the server requires its token. */
let wanted = () => {};
export function onTokenWanted(then: () => void): void {
  wanted = then;
}

async function answered(method: string, path: string, query: Record<string, string> = {}, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const search = new URLSearchParams(query).toString();
  let answer: Response;
  try {
    answer = await fetch(`/api/${path}${search ? `?${search}` : ''}`, {
      method,
      ...(signal ? { signal } : {}),
      ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
    });
  } catch {
    throw new Refused(0, 'The server does not respond.', 'Is `netstage serve` still running?');
  }
  if (answer.ok) return answer;
  if (answer.status === 401 && path !== 'session') wanted();
  const failure = (await answer.json().catch(() => null)) as { error?: { message: string; help?: string; problems?: Problem[] } } | null;
  throw new Refused(answer.status, failure?.error?.message ?? `The server responded with status ${answer.status}.`, failure?.error?.help, failure?.error?.problems);
}

async function ask<T>(...question: Parameters<typeof answered>): Promise<T> {
  const answer = await answered(...question);
  return (answer.status === 204 || answer.status === 202 ? undefined : await answer.json()) as T;
}

export const api = {
  about: () => ask<About>('GET', 'about'),
  enter: (token: string) => ask<void>('POST', 'session', {}, { token }),
  scenarios: () => ask<ScenarioEntry[]>('GET', 'scenarios'),
  scenario: (name: string) => ask<{ text: string }>('GET', 'scenario', { name }),
  keep: (name: string, text: string, before: string | null) => ask<void>('PUT', 'scenario', { name }, { text, before }),
  check: (scenario: Draft, stage: Stage) => ask<Checked>('POST', 'check', {}, { scenario, stage }),
  runs: () => ask<Status[]>('GET', 'runs'),
  run: (id: number) => ask<Shown>('GET', `runs/${id}`),
  /** Undefined if there are no updates. */
  updates: (id: number, after: string, signal: AbortSignal) => ask<StudyUpdate | undefined>('GET', `runs/${id}/updates`, { after }, undefined, signal),
  start: (scenario: Draft, stage: Stage) => ask<Status>('POST', 'runs', {}, { scenario, stage }),
  stop: (id: number) => ask<void>('DELETE', `runs/${id}`),
  agents: () => ask<FleetState>('GET', 'agents'),
  records: (search: string) => ask<RecordEntry[]>('GET', 'records', { search }),
  record: (name: string) => ask<ReportData>('GET', 'record', { name }),
  compare: (names: string[]) => ask<ReportData>('POST', 'compare', {}, { names }),
  comparison: async (names: string[]) => (await answered('POST', 'compare/report.html', {}, { names })).blob(),
  file: (name: string, file: string) => `/api/record/file?${new URLSearchParams({ name, file })}`,
};
