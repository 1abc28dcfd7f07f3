// Unsaved drafts, by the name under which they were opened. They belong to the tab: a reload and a restored tab keep
// them, other tabs do not see them.

export interface Unkept {
  text: string;
  /** Content of the file when editing began. */
  before: string | null;
}

const key = (name: string) => `netstage draft ${name}`;

/** Returns whether the draft was stored. A browser may forbid storage or have no space. */
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
    // Without storage there are no drafts.
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
