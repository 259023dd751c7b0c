import { execFileSync } from "node:child_process";
import { test } from "vitest";

test("the types of the page are what the API's document says", () => {
  execFileSync(process.execPath, ["scripts/api-types.mjs", "--check"], { stdio: "pipe" });
});
