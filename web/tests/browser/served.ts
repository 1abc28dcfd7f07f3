// Starts `netstage serve` and opens its page in Chromium.

import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

export const PROGRAM = process.env.NETSTAGE ?? fileURLToPath(new URL('../../../target/release/netstage', import.meta.url));
export const served = existsSync(PROGRAM);

export class Served {
  private constructor(readonly address: string, readonly folder: string, private readonly child: ChildProcess) {}

  /** Starts with these files: scenarios/NAME and records/NAME. */
  static async start(files: Record<string, string>, ...options: string[]): Promise<Served> {
    const folder = mkdtempSync(join(tmpdir(), 'netstage-served-'));
    mkdirSync(join(folder, 'scenarios'));
    for (const [name, text] of Object.entries(files)) {
      mkdirSync(dirname(join(folder, name)), { recursive: true });
      writeFileSync(join(folder, name), text);
    }
    const child = spawn(PROGRAM, ['serve', 'scenarios', '--records', 'records', ...(options.includes('--listen') ? [] : ['--listen', '127.0.0.1:0']), ...options], {
      cwd: folder, stdio: ['ignore', 'pipe', 'inherit'],
    });
    const address = await new Promise<string>((resolve, reject) => {
      createInterface(child.stdout!).once('line', resolve);
      child.once('exit', (code) => reject(new Error(`netstage serve ended with ${code}`)));
    });
    return new Served(address.trim(), folder, child);
  }

  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
    const ended = new Promise((resolve) => this.child.once('exit', resolve));
    this.child.kill(signal);
    await ended;
    rmSync(this.folder, { recursive: true });
  }
}

const TWO_VPNS = readFileSync(new URL('../../../crates/netstage/tests/program/serve/two-vpns.toml', import.meta.url), 'utf8');

/** Scenario with two VPNs on one link and details of flows, which is simulated quickly. */
export function scenario(title = 'Two VPNs', seconds = 20): string {
  const changes: [string, string][] = [
    ['"Two VPNs"', JSON.stringify(title)],
    ['"8 s"', `"${seconds} s"`],
    ['seed = 3\nrepeat = 2\n', ''],
    ['count = 2\n', ''],
    ['[measure]\n', '[measure]\nflow_detail = true\ntcp = "events"\n'],
  ];
  return changes.reduce((text, [from, to]) => {
    if (!text.includes(from)) throw new Error(`the scenario has no ${from}`);
    return text.replaceAll(from, () => to);
  }, TWO_VPNS);
}
