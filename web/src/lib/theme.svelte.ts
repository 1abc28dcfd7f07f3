// Light or dark theme: the system's setting, unless the user selects one. The selection is stored if the browser
// permits.

import type { Mode } from './palette';

export type Choice = 'auto' | Mode;
const KEY = 'netstage-theme';

class Theme {
  choice = $state<Choice>(remembered());
  private system = $state<Mode>('light');
  private printing = $state(false);
  mode = $derived<Mode>(this.printing ? 'light' : this.choice === 'auto' ? this.system : this.choice);

  constructor() {
    const dark = window.matchMedia('(prefers-color-scheme: dark)');
    this.system = dark.matches ? 'dark' : 'light';
    dark.addEventListener('change', () => (this.system = dark.matches ? 'dark' : 'light'));
    window.addEventListener('beforeprint', () => (this.printing = true));
    window.addEventListener('afterprint', () => (this.printing = false));
    this.apply();
  }

  choose(choice: Choice): void {
    this.choice = choice;
    this.apply();
    try {
      if (choice === 'auto') localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, choice);
    } catch {
      // Without storage, the selection applies to this page only.
    }
  }

  private apply(): void {
    const root = document.documentElement;
    if (this.choice === 'auto') delete root.dataset.theme;
    else root.dataset.theme = this.choice;
  }
}

function remembered(): Choice {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === 'light' || kept === 'dark' ? kept : 'auto';
  } catch {
    return 'auto';
  }
}

export const theme = new Theme();
