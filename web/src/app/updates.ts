// Polls the updates of a study. A browser opens few connections to one host, and an open stream per page would exhaust
// them.

import { api, Refused, type StudyUpdate } from './api';

/** Minimum interval between requests, milliseconds. */
const INTERVAL = 100;
/** Maximum interval after requests without a response, milliseconds. */
const MAX_INTERVAL = 5000;
/** Timeout of a request, milliseconds. */
const TIMEOUT = 30_000;

interface Observer {
  /** Called for each update. */
  update(update: StudyUpdate): void;
  /** Called with true while the server does not respond. */
  lost(lost: boolean): void;
  /** Called when the server refuses the request; polling ends. */
  refused(reason: unknown): void;
}

/** Returns the delay before the next request, after this number of requests without a response. */
export function pause(unanswered: number, elapsed: number): number {
  return unanswered === 0 ? Math.max(0, INTERVAL - elapsed) : Math.min(MAX_INTERVAL, 2 * INTERVAL * 2 ** unanswered);
}

/**
 * Polls the updates of a study until its end, one request at a time, while the page is visible. Continues from the last
 * update when the page becomes visible again. Returns a function that stops polling.
 */
export function follow(id: number, observer: Observer): () => void {
  let after = '';
  let over = false;
  let request: AbortController | null = null;
  let timer = 0;

  async function poll(own: AbortController, unanswered: number): Promise<void> {
    const begin = performance.now();
    try {
      const update = await api.updates(id, after, AbortSignal.any([own.signal, AbortSignal.timeout(TIMEOUT)]));
      if (own.signal.aborted) return;
      observer.lost(false);
      unanswered = 0;
      if (update) {
        after = update.next;
        over = !['running', 'stopping'].includes(update.status.phase);
        observer.update(update);
      }
    } catch (caught) {
      if (own.signal.aborted) return;
      // A proxy responds with 5xx while the server restarts.
      if (caught instanceof Refused && caught.status !== 0 && caught.status < 500) {
        over = true;
        observer.lost(false);
        observer.refused(caught);
      } else {
        unanswered += 1;
        observer.lost(true);
      }
    }
    if (!over) timer = window.setTimeout(() => void poll(own, unanswered), pause(unanswered, performance.now() - begin));
  }

  const stop = () => {
    request?.abort();
    window.clearTimeout(timer);
  };
  const resume = () => {
    stop();
    if (!document.hidden && !over) void poll((request = new AbortController()), 0);
  };
  document.addEventListener('visibilitychange', resume);
  resume();
  return () => {
    document.removeEventListener('visibilitychange', resume);
    stop();
  };
}
