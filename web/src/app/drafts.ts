// Texts that are not kept yet, by the name they were opened as. They belong to the tab: another one does not see them, a
// reload does, and so does a tab that the browser opens again.

export interface Unkept {
  text: string;
  /** What the file held when its editing began. */
  before: string | null;
}

const key = (name: string) => `netstage draft ${name}`;

/** Whether it is remembered: a browser may refuse, or have no room. */
export function remember(name: string, draft: Unkept): boolean {
  try {
    sessionStorage.setItem(key(name), JSON.stringify(draft));
    return true;
  } catch {
    return false;
  }
}

export function forget(name: string): void {
  try {
    sessionStorage.removeItem(key(name));
  } catch {
    // Nothing was remembered then.
  }
}

export function remembered(name: string): Unkept | null {
  try {
    const draft = JSON.parse(sessionStorage.getItem(key(name)) ?? 'null') as Unkept | null;
    return typeof draft?.text === 'string' ? draft : null;
  } catch {
    return null;
  }
}
