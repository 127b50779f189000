// The Anthropic SDK: messages, thinking, tools, counting, errors, leaving.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import Anthropic from '@anthropic-ai/sdk';

import { Server, exactCommand } from './support.mjs';

let server, client;
before(async () => {
  server = await Server.start({ passUs: 1000, args: ['--ctx', '8192'] });
  client = new Anthropic({ baseURL: server.origin, apiKey: 'none', maxRetries: 0 });
});
after(() => server.stop());

const weather = {
  name: 'weather',
  description: 'Tells the weather.',
  input_schema: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'] },
};
const shell = { name: 'shell', input_schema: { type: 'object', properties: { command: { type: 'string' } } } };
const thinking = { type: 'enabled', budget_tokens: 1024 };
const ask = (text, more = {}) => (
  { model: 'any', max_tokens: 2048, thinking, messages: [{ role: 'user', content: text }], ...more });

test('messages', async () => {
  const message = await client.messages.create(ask('greet'));
  assert.deepEqual(message.content.map(part => part.type), ['thinking', 'text']);
  assert.equal(message.content[0].thinking, 'A greeting.');
  assert.equal(message.content[1].text, 'Hello there!');
  assert.equal(message.stop_reason, 'end_turn');
});

test('messages, streamed', async () => {
  const stream = client.messages.stream(ask('greet'));
  let text = '', thought = '';
  stream.on('text', piece => { text += piece; });
  stream.on('thinking', piece => { thought += piece; });
  const message = await stream.finalMessage();
  assert.deepEqual([text, thought], ['Hello there!', 'A greeting.']);
  assert.equal(message.content.at(-1).text, text);
  assert.ok(message.usage.output_tokens > 0);
});

test('thinking that is off makes no blocks', async () => {
  const message = await client.messages.create(ask('greet', { thinking: { type: 'disabled' } }));
  assert.deepEqual(message.content.map(part => part.type), ['text']);
});

test('tools, their results out of order, and a warm second turn', async () => {
  for (const stream of [false, true]) {
    const request = ask('weather ' + stream, { tools: [weather] });
    const first = stream ? await client.messages.stream(request).finalMessage() : await client.messages.create(request);
    assert.equal(first.stop_reason, 'tool_use');
    const calls = first.content.filter(part => part.type === 'tool_use');
    assert.deepEqual(calls.map(part => part.input), [{ city: 'Lisbon', days: 3 }, { city: '東京', days: 1 }]);
    const results = calls.map(part => ({ type: 'tool_result', tool_use_id: part.id, content: 'sunny' })).reverse();
    const second = await client.messages.create({
      ...request, messages: [...request.messages, { role: 'assistant', content: first.content },
        { role: 'user', content: results }],
    });
    assert.equal(second.content.at(-1).text, 'Sunny in both.');
    const { usage } = first;
    const shared = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens;
    assert.ok(second.usage.cache_read_input_tokens >= 0.95 * shared);
  }
});

test('values of inputs are exact', async () => {
  for (const stream of [false, true]) {
    const request = ask('exactly', { tools: [shell] });
    const message = stream ? await client.messages.stream(request).finalMessage() : await client.messages.create(request);
    assert.deepEqual(message.content.at(-1).input, { command: exactCommand });
  }
});

test('forced tools', async () => {
  const pick = { name: 'pick', input_schema: {
    type: 'object', properties: { one: { enum: ['a', 'b'] } }, required: ['one'] } };
  for (const tool_choice of [{ type: 'any' }, { type: 'tool', name: 'pick' }]) {
    const message = await client.messages.create(ask('unwilling', { tools: [pick], tool_choice }));
    assert.match(message.content.at(-1).input.one, /^[ab]$/);
  }
});

test('counting agrees with what is billed', async () => {
  const request = ask('greet', { tools: [weather], system: 'Be brief.' });
  const { max_tokens, ...counted } = request;
  const { input_tokens } = await client.messages.countTokens(counted);
  const { usage } = await client.messages.create(request);
  assert.equal(usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens, input_tokens);
});

test('stop sequences and limits are told', async () => {
  const stopped = await client.messages.create(ask('greet', { stop_sequences: ['there'] }));
  assert.deepEqual([stopped.stop_reason, stopped.stop_sequence], ['stop_sequence', 'there']);
  const cut = await client.messages.create(ask('endless', { max_tokens: 5, thinking: { type: 'disabled' } }));
  assert.equal(cut.stop_reason, 'max_tokens');
});

test('errors have their types', async () => {
  await assert.rejects(client.messages.create(ask('word '.repeat(9000), { stream: true })), error => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, 'invalid_request_error');
    assert.match(error.message, /context size/);
    return true;
  });
});

test('leaving ends the work', async () => {
  const stream = client.messages.stream(ask('endless'));
  await new Promise(resolve => stream.once('text', resolve));
  stream.abort();
  await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
  await Server.until(async () => await server.metric('ds4_requests_running') === 0, 'idle');
});
