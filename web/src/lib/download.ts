// Saves data of the page as a file, without a server.

export function save(name: string, type: string, parts: BlobPart[]): void {
  saveBlob(name, new Blob(parts, { type }));
}

export function saveBlob(name: string, blob: Blob): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Replaces all characters but letters, digits, dot, dash and underscore, for file names and anchors. */
export function slug(name: string): string {
  return name.normalize('NFKD').replace(/[^A-Za-z0-9._-]+/g, '-').replace(/^[-.]+|[-.]+$/g, '').slice(0, 80) || 'unnamed';
}
