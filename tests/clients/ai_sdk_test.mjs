// The AI SDK with its provider for servers that speak the OpenAI API.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

import { Server } from './support.mjs';

let server, model;
before(async () => {
  server = await Server.start({ passUs: 1000, args: ['--ctx', '8192'] });
  const provider = createOpenAICompatible({
    name: 'ds4', baseURL: server.origin + '/v1', includeUsage: true, supportsStructuredOutputs: true,
  });
  model = provider('any');
});
after(() => server.stop());

const asked = [];
const tools = {
  weather: tool({
    description: 'Tells the weather.',
    inputSchema: z.object({ city: z.string(), days: z.number() }),
    execute: ({ city }) => { asked.push(city); return 'sunny'; },
  }),
};

test('text and reasoning', async () => {
  const result = await generateText({ model, prompt: 'greet' });
  assert.deepEqual([result.text, result.reasoningText, result.finishReason], ['Hello there!', 'A greeting.', 'stop']);
  const stream = streamText({ model, prompt: 'greet' });
  const kinds = new Set();
  let text = '';
  for await (const part of stream.fullStream) {
    kinds.add(part.type);
    if (part.type === 'text-delta') text += part.text;
  }
  assert.equal(text, 'Hello there!');
  assert.ok(kinds.has('reasoning-delta'));
  assert.ok((await stream.usage).totalTokens > 0);
});

test('a loop of tools', async () => {
  for (const run of [generateText, streamText]) {
    asked.length = 0;
    const result = await run({ model, tools, prompt: 'weather', stopWhen: stepCountIs(3) });
    assert.equal(await result.text, 'Sunny in both.');
    assert.deepEqual(asked, ['Lisbon', '東京']);
    const [first, second] = await result.steps;
    assert.ok(second.usage.cachedInputTokens >= 0.95 * (first.usage.inputTokens + first.usage.outputTokens));
  }
});

test('answers in a format', async () => {
  const { output } = await generateText({
    model, prompt: 'as json', output: Output.object({ schema: z.object({ city: z.string(), degrees: z.number() }) }),
  });
  assert.deepEqual(output, { city: 'Lisbon', degrees: 21 });
});

test('errors have their types', async () => {
  await assert.rejects(generateText({ model, prompt: 'word '.repeat(9000), maxRetries: 0 }), error => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 400);
    assert.match(error.responseBody, /context_length_exceeded/);
    return true;
  });
});

test('leaving ends the work', async () => {
  const controller = new AbortController();
  const stream = streamText({ model, prompt: 'endless', abortSignal: controller.signal });
  let pieces = 0;
  for await (const part of stream.fullStream) {
    if (part.type === 'text-delta' && ++pieces === 5) controller.abort();
  }
  assert.ok(pieces >= 5);
  await Server.until(async () => await server.metric('ds4_requests_running') === 0, 'idle');
});
