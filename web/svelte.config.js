/** @type {import('@sveltejs/vite-plugin-svelte').SvelteConfig} */
export default {
  compilerOptions: {
    runes: true,
    // From the text alone, so that the same sources give the same bytes in any directory.
    cssHash: ({ hash, css }) => `s${hash(css)}`,
  },
};
