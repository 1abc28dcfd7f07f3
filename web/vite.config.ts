import { svelte } from '@sveltejs/vite-plugin-svelte';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { reportFiles } from './build/report-files.ts';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  plugins: [svelte(), reportFiles(here('build/template.html'))],
  build: {
    target: ['chrome111', 'firefox114', 'safari16.4'],
    outDir: 'dist',
    emptyOutDir: true,
    cssCodeSplit: false,
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      input: here('src/report.ts'),
      output: {
        format: 'iife',
        entryFileNames: 'report.js',
        assetFileNames: 'report.[ext]',
      },
    },
  },
  test: {
    include: ['tests/**/*.test.ts'],
    fileParallelism: false,
    testTimeout: 30_000,
  },
});
