import { renderToStaticMarkup } from "react-dom/server";
import { describe, expect, test } from "vitest";
import { Name } from "../src/components/Name";
import { plainName, splitName } from "../src/lib/names";

describe("names from outside", () => {
  test("markup in a name is text", () => {
    const html = renderToStaticMarkup(<Name>{"<script>alert(1)</script>"}</Name>);
    expect(html).not.toContain("<script>");
    expect(html).toContain("&lt;script&gt;");
  });

  test("a mark that turns text around is shown as its code", () => {
    expect(splitName("a\u202egnp.exe")).toEqual([
      { text: "a", isCode: false },
      { text: "U+202E", isCode: true },
      { text: "gnp.exe", isCode: false },
    ]);
    expect(plainName("a\u200bb\u0000")).toBe("a[U+200B]b[U+0000]");
  });

  test("every character that hides or turns text is found", () => {
    for (const code of [0x00, 0x0a, 0x1b, 0x7f, 0x9b, 0xad, 0x61c, 0x200b, 0x200e, 0x200f, 0x2028, 0x202a, 0x202e, 0x2066, 0x2069, 0xfeff]) {
      expect(splitName(String.fromCodePoint(code))[0]?.isCode, code.toString(16)).toBe(true);
    }
  });

  test("names in other scripts and emoji stay as they are", () => {
    for (const name of ["工人-1", "عامل", "рабочий", "👩‍🔬".replaceAll("\u200d", ""), "é"]) expect(plainName(name)).toBe(name);
  });

  test("a name of 128 characters is there in full for who asks", () => {
    const name = "x".repeat(128);
    expect(renderToStaticMarkup(<Name>{name}</Name>)).toContain(`title="${name}"`);
  });
});
