import { svelte } from '@sveltejs/vite-plugin-svelte';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { appFiles, reportFiles } from './build/files.ts';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

// Two bundles of the same components: `--mode report` is embedded in its page, `--mode app` is served.
export default defineConfig(({ mode }) => {
  const name = mode === 'app' ? 'app' : 'report';
  return {
    plugins: [svelte(), name === 'app' ? appFiles(here('build/app.html')) : reportFiles(here('build/template.html'))],
    build: {
      target: ['chrome111', 'firefox114', 'safari16.4'],
      outDir: 'dist',
      emptyOutDir: name === 'report',
      cssCodeSplit: false,
      modulePreload: false,
      assetsInlineLimit: 0,
      rollupOptions: {
        input: here(`src/${name}.ts`),
        output: {
          format: 'iife',
          entryFileNames: `${name}.js`,
          assetFileNames: `${name}.[ext]`,
        },
      },
    },
    test: {
      include: ['tests/**/*.test.ts'],
      fileParallelism: false,
      testTimeout: 30_000,
      // Frames and gestures are measured in real time, beside other tests. scripts/skips.py lists the repeated ones.
      retry: process.env.CI === 'true' ? 1 : 0,
    },
  };
});
