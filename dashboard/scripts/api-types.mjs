// Writes src/api/types.ts from openapi.json, which the coordinator's models make: the page has no types of its own invention.
//     node scripts/api-types.mjs           write it
//     node scripts/api-types.mjs --check   fail if it is not what openapi.json says
import { readFileSync, writeFileSync } from "node:fs";

const target = new URL("../src/api/types.ts", import.meta.url);
const document = JSON.parse(readFileSync(new URL("../openapi.json", import.meta.url), "utf8"));

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return [...new Set(choices.map(typeOf))].join(" | ");
  if (schema.allOf) return schema.allOf.map(typeOf).join(" & ");
  switch (schema.type) {
    case "integer":
    case "number":
      return "number";
    case "string":
    case "boolean":
    case "null":
      return schema.type;
    case "array":
      if (schema.prefixItems) return `[${schema.prefixItems.map(typeOf).join(", ")}]`;
      return `(${typeOf(schema.items ?? {})})[]`;
    case "object":
      if (schema.additionalProperties) return `Record<string, ${typeOf(schema.additionalProperties)}>`;
      return "Record<string, unknown>";
    default:
      return "unknown";
  }
}

function declare([name, schema]) {
  const doc = schema.description ? `/** ${schema.description.replaceAll("``", "`").replaceAll(/\s+/g, " ")} */\n` : "";
  if (!schema.properties) return `${doc}export type ${name} = ${typeOf(schema)};`;
  const fields = Object.entries(schema.properties).map(([field, of]) => {
    const note = of.description ? `  /** ${of.description.replaceAll("``", "`").replaceAll(/\s+/g, " ")} */\n` : "";
    return `${note}  ${field}: ${typeOf(of)};`;
  });
  return `${doc}export interface ${name} {\n${fields.join("\n")}\n}`;
}

// What belongs to FastAPI's own validation errors is not read by the page.
const schemas = Object.entries(document.components.schemas).filter(([name]) => !/ValidationError$/.test(name));
const text = `// Made from openapi.json by "npm run types"; change the coordinator's models instead.\n\n${schemas.map(declare).join("\n\n")}\n`;
if (process.argv.includes("--check")) {
  if (readFileSync(target, "utf8") !== text) {
    console.error("src/api/types.ts is not what openapi.json says: npm run types");
    process.exit(1);
  }
} else {
  writeFileSync(target, text);
}
