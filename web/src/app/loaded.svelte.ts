// Result of a repeated request: the last response, or the error.

import { onMount } from 'svelte';

/** Interval between requests while the list is visible, milliseconds. */
const AGAIN = 2000;

export class Loaded<T> {
  value = $state.raw<T | null>(null);
  error = $state.raw<unknown>(null);
  private asked = 0;

  /** An outdated response is dropped; the previous value remains until the next one. */
  async ask(question: () => Promise<T>): Promise<void> {
    const own = ++this.asked;
    try {
      const value = await question();
      if (own === this.asked) [this.value, this.error] = [value, null];
    } catch (caught) {
      if (own === this.asked) this.error = caught;
    }
  }

  /** Ignores all pending responses. */
  forget(): void {
    this.asked++;
    [this.value, this.error] = [null, null];
  }
}

/** Repeats a request while the component is mounted. Call it during initialization. */
export function polled<T>(question: () => Promise<T>): Loaded<T> {
  const loaded = new Loaded<T>();
  onMount(() => {
    let timer = 0;
    let gone = false;
    const again = async () => {
      await loaded.ask(question);
      if (!gone) timer = window.setTimeout(again, AGAIN);
    };
    void again();
    return () => {
      gone = true;
      window.clearTimeout(timer);
    };
  });
  return loaded;
}
