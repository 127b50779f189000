// The OpenAI SDK: chat completions, completions, models, errors, leaving; responses have a file of their own.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import { Server, exactCommand } from './support.mjs';

let server, client;
before(async () => {
  server = await Server.start({ passUs: 1000, args: ['--ctx', '8192'] });
  client = new OpenAI({ baseURL: server.origin + '/v1', apiKey: 'none', maxRetries: 0 });
});
after(() => server.stop());

const weather = {
  type: 'function',
  function: {
    name: 'weather',
    parameters: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] },
  },
};
const shell = {
  type: 'function',
  function: { name: 'shell', parameters: { type: 'object', properties: { command: { type: 'string' } } } },
};
const ask = (text, more = {}) => ({ model: 'any', messages: [{ role: 'user', content: text }], ...more });

test('models', async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  assert.equal(models.length, 1);
  assert.equal((await client.models.retrieve(models[0].id)).id, models[0].id);
  await assert.rejects(client.models.retrieve('unknown'), OpenAI.NotFoundError);
});

test('chat', async () => {
  const { choices, usage } = await client.chat.completions.create(ask('greet'));
  assert.equal(choices[0].message.content, 'Hello there!');
  assert.equal(choices[0].message.reasoning_content, 'A greeting.');
  assert.equal(choices[0].finish_reason, 'stop');
  assert.ok(usage.completion_tokens_details.reasoning_tokens > 0);
  assert.equal(usage.prompt_tokens_details.cached_tokens >= 0, true);
});

test('chat, streamed', async () => {
  const stream = client.chat.completions.stream(ask('greet', { stream_options: { include_usage: true } }));
  let text = '';
  stream.on('content', piece => { text += piece; });
  const completion = await stream.finalChatCompletion();
  assert.equal(text, 'Hello there!');
  assert.equal(completion.choices[0].message.content, text);
  assert.ok((await stream.totalUsage()).total_tokens > 0);
});

test('log-probabilities and several answers', async () => {
  const { choices } = await client.chat.completions.create(ask('greet', { n: 2, logprobs: true, top_logprobs: 1 }));
  assert.equal(choices.length, 2);
  for (const choice of choices) {
    assert.equal(choice.logprobs.content.map(token => token.token).join(''), 'Hello there!');
  }
});

test('a loop of tools', async () => {
  const asked = [];
  const runner = client.chat.completions.runTools(ask('weather', {
    tools: [{
      type: 'function',
      function: {
        ...weather.function,
        parse: JSON.parse,
        function: ({ city, days }) => { asked.push([city, days]); return 'sunny'; },
      },
    }],
  }));
  assert.equal(await runner.finalContent(), 'Sunny in both.');
  assert.deepEqual(asked, [['Lisbon', 3], ['東京', 1]]);
});

test('a loop of tools, streamed, is warm', async () => {
  const runner = client.chat.completions.runTools(ask('weather', {
    stream: true, stream_options: { include_usage: true },
    tools: [{ type: 'function', function: { ...weather.function, parse: JSON.parse, function: () => 'sunny' } }],
  }));
  assert.equal(await runner.finalContent(), 'Sunny in both.');
  const [first, second] = runner.allChatCompletions();
  const shared = first.usage.prompt_tokens + first.usage.completion_tokens;
  assert.ok(second.usage.prompt_tokens_details.cached_tokens >= 0.95 * shared);
});

test('values of arguments are exact', async () => {
  for (const stream of [false, true]) {
    const request = ask('exactly', { tools: [shell] });
    const completion = stream ? await client.chat.completions.stream(request).finalChatCompletion()
      : await client.chat.completions.create(request);
    const [made] = completion.choices[0].message.tool_calls;
    assert.deepEqual(JSON.parse(made.function.arguments), { command: exactCommand });
  }
});

test('required and named tools', async () => {
  for (const tool_choice of ['required', { type: 'function', function: { name: 'pick' } }]) {
    const { choices } = await client.chat.completions.create(ask('unwilling', {
      tool_choice,
      tools: [{ type: 'function', function: { name: 'pick', parameters: {
        type: 'object', properties: { one: { enum: ['a', 'b'] } }, required: ['one'] } } }],
    }));
    assert.match(JSON.parse(choices[0].message.tool_calls[0].function.arguments).one, /^[ab]$/);
  }
});

test('answers in a format', async () => {
  const format = z.object({ city: z.string(), degrees: z.number() });
  const completion = await client.chat.completions.parse(ask('as json', {
    response_format: zodResponseFormat(format, 'report'),
  }));
  assert.deepEqual(completion.choices[0].message.parsed, { city: 'Lisbon', degrees: 21 });
});

test('completions', async () => {
  const completion = await client.completions.create({ model: 'any', prompt: 'greet' });
  assert.match(completion.choices[0].text, /Hello there!/);
  let text = '';
  for await (const chunk of await client.completions.create({ model: 'any', prompt: 'greet', stream: true })) {
    text += chunk.choices[0]?.text ?? '';
  }
  assert.equal(text, completion.choices[0].text);
});

test('errors have their types', async () => {
  await assert.rejects(client.chat.completions.create(ask('greet', { logit_bias: { 5: 1 } })), error => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, 'logit_bias');
    return true;
  });
  await assert.rejects(client.chat.completions.create(ask('word '.repeat(9000), { stream: true })), error => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, 'context_length_exceeded');
    return true;
  });
});

test('leaving ends the work', async () => {
  const stream = await client.chat.completions.create(ask('endless', { stream: true }));
  let pieces = 0;
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content && ++pieces === 5) stream.controller.abort();
  }
  const controller = new AbortController();
  const whole = client.chat.completions.create(ask('endless'), { signal: controller.signal });
  setTimeout(() => controller.abort(), 200);
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  await Server.until(async () => await server.metric('ds4_requests_running') === 0, 'idle');
});

test('keys', async () => {
  const guarded = await Server.start({ args: ['--api-key', 'secret'] });
  const options = { baseURL: guarded.origin + '/v1', maxRetries: 0 };
  await assert.rejects(new OpenAI({ ...options, apiKey: 'wrong' }).chat.completions.create(ask('greet')),
    OpenAI.AuthenticationError);
  const { choices } = await new OpenAI({ ...options, apiKey: 'secret' }).chat.completions.create(ask('greet'));
  assert.equal(choices[0].message.content, 'Hello there!');
  await guarded.stop();
});
