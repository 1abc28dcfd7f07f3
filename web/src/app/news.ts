// What is new of a run, asked for again and again: a browser has few connections to a host, and a page that kept one
// would leave none to the seventh.

import { api, Refused, type News } from './api';

/** A page asks no more often, milliseconds from one question to the next. */
const EVERY = 100;
/** The longest wait after questions that were not answered. */
const LONGEST = 5000;
/** A server that answers at all has answered by then. */
const PATIENCE = 30_000;

interface Hears {
  /** What came since it was told before. */
  news(news: News): void;
  /** Whether the server does not answer, for now. */
  lost(lost: boolean): void;
  /** It does not know the run, or does not tell: nothing more is asked. */
  refused(why: unknown): void;
}

/** How long to wait before the next question, after so many that were not answered. */
export function pause(unanswered: number, took: number): number {
  return unanswered === 0 ? Math.max(0, EVERY - took) : Math.min(LONGEST, 2 * EVERY * 2 ** unanswered);
}

/**
 * Follows a run to its end, one question at a time, as long as the page is looked at; it goes on where it was when it is
 * looked at again. Gives what ends it.
 */
export function follow(id: number, hears: Hears): () => void {
  let after = '';
  let over = false;
  let asking: AbortController | null = null;
  let timer = 0;

  async function ask(own: AbortController, unanswered: number): Promise<void> {
    const begin = performance.now();
    try {
      const news = await api.news(id, after, AbortSignal.any([own.signal, AbortSignal.timeout(PATIENCE)]));
      if (own.signal.aborted) return;
      hears.lost(false);
      unanswered = 0;
      if (news) {
        after = news.next;
        over = !['running', 'stopping'].includes(news.status.phase);
        hears.news(news);
      }
    } catch (caught) {
      if (own.signal.aborted) return;
      // A proxy answers so for a server that is being started anew.
      if (caught instanceof Refused && caught.status !== 0 && caught.status < 500) {
        over = true;
        hears.lost(false);
        hears.refused(caught);
      } else {
        unanswered += 1;
        hears.lost(true);
      }
    }
    if (!over) timer = window.setTimeout(() => void ask(own, unanswered), pause(unanswered, performance.now() - begin));
  }

  const rest = () => {
    asking?.abort();
    window.clearTimeout(timer);
  };
  const look = () => {
    rest();
    if (!document.hidden && !over) void ask((asking = new AbortController()), 0);
  };
  document.addEventListener('visibilitychange', look);
  look();
  return () => {
    document.removeEventListener('visibilitychange', look);
    rest();
  };
}
