// Report page: reads the embedded data and renders it.

import { mount } from 'svelte';
import './page.css';
import type { ReportData } from './lib/types';
import Report from './Report.svelte';

function say(target: HTMLElement, text: string): void {
  const p = document.createElement('p');
  p.setAttribute('role', 'alert');
  p.className = 'refused';
  p.textContent = text;
  target.replaceChildren(p);
}

function start(): void {
  const target = document.getElementById('app');
  const source = document.getElementById('netstage-data');
  if (!target) return;
  let data: ReportData;
  try {
    data = JSON.parse(source?.textContent ?? '') as ReportData;
  } catch (e) {
    say(target, `This report's data cannot be read: ${e instanceof Error ? e.message : String(e)}`);
    return;
  }
  if (data.schema !== 1) {
    say(target, `This page reads reports of schema 1; this one has schema ${String(data.schema)}.`);
    return;
  }
  document.title ||= data.title;
  target.replaceChildren();
  mount(Report, { target, props: { data } });
}

start();
