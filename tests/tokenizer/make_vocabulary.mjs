// Builds the vocabulary of DeepSeek V4 from that of V3 (the first 128,000 tokens and all merges are the same) and the
// added tokens of V4 (docs/tokenizer.md §2), checks it against known hashes and writes {"tokens": [...],
// "merges": [...]}.
// Usage: node make_vocabulary.mjs TOKENIZER_JSON OUTPUT_JSON
import { createHash } from "node:crypto";
import { readFileSync, renameSync, writeFileSync } from "node:fs";

const TOKENS_SHA256 = "c92251fc634ff01cc6767d2e3ce1d368e72b5f02b647983d4410eb0c46693fa3";
const MERGES_SHA256 = "8100a9693dc10b8aad79abbe20b172545ff5e1e6051e0705cc91e73b88e3751f";

function addedTokens() {
  const bar = (name) => `<｜${name.replaceAll(" ", "▁")}｜>`;
  const tokens = [];
  for (let n = 0; n < 800; ++n) tokens.push(bar(`place holder no ${n}`));
  tokens.push(bar("fim hole"), bar("fim begin"), bar("fim end"), bar("User"), bar("Assistant"), "<|EOT|>");
  for (const kind of ["calls", "call", "outputs", "output"]) {
    tokens.push(bar(`tool ${kind} begin`), bar(`tool ${kind} end`));
  }
  tokens.push(bar("tool sep"));
  for (const place of ["repo name", "file name", "file"]) tokens.push(bar(`begin of ${place}`), bar(`end of ${place}`));
  tokens.push("<think>", "</think>", bar("place holder for copy"), bar("place holder for pointer replace"), "｜DSML｜");
  tokens.push(bar("begin sys"), bar("end sys"), bar("latest_reminder"));
  for (const name of ["action", "query", "authority", "domain", "task", "political", "entity", "title", "safety",
                      "answer", "search"]) {
    tokens.push(bar(name));
  }
  tokens.push("<dsml:", "</dsml:", bar("search begin"), bar("search end"));
  tokens.push(bar("extracted_url"), bar("read_url"), bar("end_of_query"));
  for (let n = 21; n <= 435; ++n) tokens.push(`<|place_holder_mm_span_${String(n).padStart(4, "0")}|>`);
  tokens.push(bar("rl_image_pad"), bar("rl_image_start"), bar("image2"));
  tokens.push("<｜/table>｜", bar("table"));  // the odd spelling is the real one
  for (const name of ["td", "tr", "polygon", "point", "box", "ref"]) tokens.push(bar(`/${name}`), bar(name));
  tokens.push(bar("image"));
  return tokens;
}

/// SHA-256 over u64 index, u64 byte length (little-endian) and the bytes of every element.
function tableHash(strings) {
  const hash = createHash("sha256");
  strings.forEach((string, index) => {
    const bytes = Buffer.from(string, "utf8");
    const head = Buffer.alloc(16);
    head.writeBigUInt64LE(BigInt(index), 0);
    head.writeBigUInt64LE(BigInt(bytes.length), 8);
    hash.update(head).update(bytes);
  });
  return hash.digest("hex");
}

const [source, output] = process.argv.slice(2);
const { model } = JSON.parse(readFileSync(source, "utf8"));
const tokens = [];
for (const [string, id] of Object.entries(model.vocab)) if (id < 128000) tokens[id] = string;
tokens.push(...addedTokens());
const merges = model.merges.map((merge) => (Array.isArray(merge) ? merge.join(" ") : merge));

for (const [name, table, expected] of [["tokens", tokens, TOKENS_SHA256], ["merges", merges, MERGES_SHA256]]) {
  const actual = tableHash(table);
  if (actual !== expected) {
    console.error(`${name}: ${table.length} entries with hash ${actual}, expected ${expected}`);
    process.exit(1);
  }
}
writeFileSync(`${output}.part`, JSON.stringify({ tokens, merges }));
renameSync(`${output}.part`, output);
