// The OpenAI SDK with the Responses API.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import { Server, exactCommand } from './support.mjs';

let server, client;
before(async () => {
  server = await Server.start({ passUs: 1000, args: ['--ctx', '8192'] });
  client = new OpenAI({ baseURL: server.origin + '/v1', apiKey: 'none', maxRetries: 0 });
});
after(() => server.stop());

const weather = {
  type: 'function', name: 'weather', strict: false,
  parameters: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] },
};
const shell = { type: 'function', name: 'shell', strict: false,
  parameters: { type: 'object', properties: { command: { type: 'string' } } } };
const ask = (input, more = {}) => ({ model: 'any', input, reasoning: { summary: 'auto' }, ...more });

async function both(request) {
  return [await client.responses.create(request), await client.responses.stream(request).finalResponse()];
}

test('responses', async () => {
  for (const response of await both(ask('greet', { instructions: 'Be brief.' }))) {
    assert.equal(response.status, 'completed');
    assert.equal(response.output_text, 'Hello there!');
    assert.deepEqual(response.output.map(item => item.type), ['reasoning', 'message']);
    assert.equal(response.output[0].summary[0].text, 'A greeting.');
    assert.ok(response.usage.output_tokens_details.reasoning_tokens > 0);
  }
});

test('calls, and going on by id and by replay', async () => {
  for (const first of await both(ask('weather', { tools: [weather] }))) {
    const calls = first.output.filter(item => item.type === 'function_call');
    assert.deepEqual(calls.map(item => JSON.parse(item.arguments)), [{ city: 'Lisbon', days: 3 }, { city: '東京', days: 1 }]);
    const results = calls.map(item => ({ type: 'function_call_output', call_id: item.call_id, output: 'sunny' }));
    const shared = first.usage.input_tokens + first.usage.output_tokens;
    for (const request of [
      ask(results, { previous_response_id: first.id, tools: [weather] }),
      ask([{ role: 'user', content: 'weather' }, ...first.output, ...results.reverse()], { tools: [weather] }),
    ]) {
      for (const second of await both(request)) {
        assert.equal(second.output_text, 'Sunny in both.');
        assert.ok(second.usage.input_tokens_details.cached_tokens >= 0.95 * shared);
      }
    }
  }
});

test('values of arguments are exact', async () => {
  for (const response of await both(ask('exactly', { tools: [shell] }))) {
    assert.deepEqual(JSON.parse(response.output.at(-1).arguments), { command: exactCommand });
  }
});

test('answers in a format', async () => {
  const format = zodTextFormat(z.object({ city: z.string(), degrees: z.number() }), 'report');
  const response = await client.responses.parse(ask('as json', { text: { format } }));
  assert.deepEqual(response.output_parsed, { city: 'Lisbon', degrees: 21 });
});

test('responses that are cut are incomplete', async () => {
  for (const response of await both(ask('endless', { max_output_tokens: 6, reasoning: { effort: 'none' } }))) {
    assert.deepEqual([response.status, response.incomplete_details.reason], ['incomplete', 'max_output_tokens']);
  }
});

test('responses are kept and deleted', async () => {
  const { id } = await client.responses.create(ask('greet'));
  assert.equal((await client.responses.retrieve(id)).output_text, 'Hello there!');
  await client.responses.delete(id);
  await assert.rejects(client.responses.retrieve(id), OpenAI.NotFoundError);
  await assert.rejects(client.responses.create(ask('greet', { previous_response_id: id })), error => {
    assert.equal(error.code, 'previous_response_not_found');
    return true;
  });
});

test('leaving ends the work', async () => {
  const stream = await client.responses.create(ask('endless', { stream: true }));
  for await (const event of stream) {
    if (event.type === 'response.output_text.delta') break;
  }
  stream.controller.abort();
  await Server.until(async () => await server.metric('ds4_requests_running') === 0, 'idle');
});
