import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/**
 * Lets the browser fetch and compile plotly.js (but not run it) from the first moment on, beside everything else: most
 * visits need it, and it is the largest part of the page.
 */
function preloadPlotly(): Plugin {
  return {
    name: "preload-plotly",
    transformIndexHtml(_html, context) {
      const chunks = Object.values(context.bundle ?? {});
      return chunks
        .filter((chunk) => chunk.fileName.includes("plotly") && chunk.fileName.endsWith(".js"))
        .map((chunk) => ({
          tag: "link",
          attrs: {
            rel: "modulepreload",
            crossorigin: true,
            href: `/${chunk.fileName}`,
            fetchpriority: "low",
          },
          injectTo: "head" as const,
        }));
    },
  };
}

export default defineConfig({
  plugins: [react(), preloadPlotly()],
  build: {
    // Served by the Python package; ignored by git, packed into the wheel.
    outDir: "../trainwatch/server/static",
    emptyOutDir: true,
    // plotly.js alone is 1.5 MB; it is a chunk of its own, which only charts wait for.
    chunkSizeWarningLimit: 1700,
  },
  server: {
    proxy: { "/api": "http://127.0.0.1:8420" },
  },
  test: {
    include: ["src/**/*.test.ts"],
  },
});
