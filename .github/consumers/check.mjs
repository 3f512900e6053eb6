// Read JUnit files with two parsers of the Node world and demand that they see
// what is there. Usage: node check.mjs FILE..., with the packages in node_modules.
import { readFileSync } from 'node:fs';
import { parse } from 'junit2json';
import results from 'test-results-parser';

const files = process.argv.slice(2);
if (files.length === 0) throw new Error('no files');

function count(text, element) {
  return [...text.matchAll(new RegExp(`<${element}[ />]`, 'g'))].length;
}

for (const file of files) {
  const text = readFileSync(file, 'utf8').replace(/<!\[CDATA\[[\s\S]*?\]\]>/g, '');
  const want = { total: count(text, 'testcase'), failures: count(text, 'failure'), errors: count(text, 'error'), skipped: count(text, 'skipped') };
  if (want.total === 0) throw new Error(`${file}: no test cases`);

  const tree = await parse(readFileSync(file, 'utf8'));
  const cases = tree.testsuite.flatMap((s) => s.testcase ?? []);
  const has = (k) => cases.filter((c) => c[k] !== undefined).length;
  const junit2json = { total: cases.length, failures: has('failure'), errors: has('error'), skipped: has('skipped') };
  compare(file, 'junit2json', junit2json, want);
  if (cases.some((c) => Number.isNaN(Number.parseFloat(c.time)))) throw new Error(`${file}: a case without a time`);

  // This parser leaves skipped cases out of its total.
  const r = results.parse({ type: 'junit', files: [file] });
  compare(file, 'test-results-parser', { total: r.total + r.skipped, failures: r.failed, errors: r.errors, skipped: r.skipped }, want);
  const green = want.failures + want.errors === 0;
  if ((r.status === 'PASS') !== green) throw new Error(`${file}: test-results-parser says ${r.status}`);
  console.log(`${file}: ${want.total} cases, as junit2json and test-results-parser see them`);
}

function compare(file, who, got, want) {
  for (const k of Object.keys(want)) {
    if (got[k] !== want[k]) throw new Error(`${file}: ${who} sees ${got[k]} ${k}, there are ${want[k]}`);
  }
}
