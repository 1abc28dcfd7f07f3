// Page of `netstage serve`: scenarios, live runs and records.

import { mount } from 'svelte';
import './page.css';
import './app/app.css';
import App from './app/App.svelte';

const target = document.getElementById('app');
if (target) {
  target.replaceChildren();
  mount(App, { target });
}
