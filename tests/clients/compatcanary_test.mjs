// CompatCanary, a scanner of servers that speak the OpenAI API, with the bundled model.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';

import { Server } from './support.mjs';

test('everything passes', async () => {
  // A small model may write a long argument; answers are closed at their limit.
  const server = await Server.start({ rules: null, args: ['--tokens', '256'] });
  const { stdout } = await promisify(execFile)('node_modules/.bin/compatcanary',
    ['scan', '--base-url', server.origin + '/v1', '--model', 'deepseek-v4-nano'], { timeout: 60000 });
  assert.match(stdout, /Score: 100\/100/);
  await server.stop();
});
