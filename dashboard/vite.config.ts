import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// `npm run dev` shows the coordinator at this address.
const coordinator = process.env.STRATA_HTTP ?? "http://127.0.0.1:8080";

export default defineConfig({
  // Relative addresses: the page also works behind a proxy that puts it under a prefix.
  base: "./",
  plugins: [react()],
  build: {
    outDir: "../src/strata/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    // No inline data: a strict Content-Security-Policy forbids it for fonts.
    assetsInlineLimit: 0,
    license: { fileName: "licenses.md" },
    modulePreload: { polyfill: false },
  },
  server: { port: 3000, proxy: { "/api": coordinator, "/metrics": coordinator } },
  test: { include: ["tests/**/*.test.{ts,tsx}"], environment: "node" },
});
