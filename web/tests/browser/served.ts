// `netstage serve` with a page of it in Chromium.

import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

export const PROGRAM = process.env.NETSTAGE ?? fileURLToPath(new URL('../../../target/release/netstage', import.meta.url));
export const served = existsSync(PROGRAM);

export class Served {
  private constructor(readonly address: string, readonly folder: string, private readonly child: ChildProcess) {}

  /** With these files: scenarios/NAME and records/NAME. */
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

/** Two VPNs on one link; simulated in a moment. */
export function scenario(title = 'Two VPNs', seconds = 20): string {
  return `[scenario]
title = ${JSON.stringify(title)}
duration = "${seconds} s"

[defaults.link]
rate = "100 Mbit/s"
delay = "1 ms"
buffer = "50 packets"

[node.a]
[node.b]
[node.c]
[node.d]
[node.left]
kind = "pe"
[node.right]
kind = "pe"

[link.core]
ends = ["left", "right"]
rate = "8 Mbit/s"
delay = "10 ms"
[link.one]
ends = ["a", "left"]
[link.two]
ends = ["b", "left"]
[link.three]
ends = ["right", "c"]
[link.four]
ends = ["right", "d"]

[vpn.gold]
weight = 2
ingress = "left"
egress = "right"
[vpn.silver]
ingress = "left"
egress = "right"

[flow.gold]
vpn = "gold"
from = "a"
to = "c"
[flow.silver]
vpn = "silver"
from = "b"
to = "d"

[measure]
interval = "500 ms"
flow_detail = true
tcp = "events"

[expect.line-is-used]
metric = "link.utilisation"
subject = "core.forward"
over = ["5 s", "${seconds} s"]
at_least = 0.5

[plot.shares]
metric = "vpn.throughput"
`;
}
