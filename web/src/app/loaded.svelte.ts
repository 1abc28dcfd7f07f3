// What is asked of the server and shown: the last answer, or why there is none.

import { onMount } from 'svelte';

/** How often a list that is looked at is asked for again, milliseconds. */
const AGAIN = 2000;

export class Loaded<T> {
  value = $state.raw<T | null>(null);
  error = $state.raw<unknown>(null);
  private asked = 0;

  /** An answer that was overtaken by another question is dropped; the one before stays until there is a new one. */
  async ask(question: () => Promise<T>): Promise<void> {
    const own = ++this.asked;
    try {
      const value = await question();
      if (own === this.asked) [this.value, this.error] = [value, null];
    } catch (caught) {
      if (own === this.asked) this.error = caught;
    }
  }

  /** Nothing is shown any more, whatever is still answered. */
  forget(): void {
    this.asked++;
    [this.value, this.error] = [null, null];
  }
}

/** Asked again and again as long as the component is there. Call it while that is made. */
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
