// Coding agents, started headless: their real first prompt, a tool call that they carry out, and a warm second turn.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';

import { Server, block, call } from './support.mjs';

const packages = join(process.cwd(), 'node_modules');
const answer = 'The only file is evidence-7431.txt.';

// `tool` is how the agent calls its shell. The question may stand before other texts of the agent.
function rules(tool, marks = []) {
  const text = 'I list them.</think>I will look.' + block(call(...tool));
  return [
    { when: 'evidence-7431', text: 'I see a file.</think>' + answer },
    ...['list the files', ...marks].map(when => ({ when, text })),
  ];
}

// A home and a project of its own, and no network but the loopback.
class Workplace {
  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), 'ds4-agent-'));
    this.home = join(this.folder, 'home');
    this.project = join(this.folder, 'project');
    this.write('project/evidence-7431.txt', 'x\n');
  }

  write(name, content) {
    const path = join(this.folder, name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, content);
  }

  async run(command, args, environment = {}) {
    mkdirSync(this.home, { recursive: true });
    const nowhere = 'http://127.0.0.1:9';
    const child = spawn(command, args, {
      cwd: this.project, stdio: ['ignore', 'pipe', 'pipe'], timeout: 120000,
      env: { PATH: process.env.PATH, HOME: this.home, TERM: 'xterm', HTTP_PROXY: nowhere, HTTPS_PROXY: nowhere,
        NO_PROXY: '127.0.0.1,localhost', ...environment },
    });
    const output = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr']) child[name].on('data', data => { output[name] += data; });
    const status = await new Promise((resolve, reject) => child.on('exit', resolve).on('error', reject));
    assert.equal(status, 0, JSON.stringify(output));
    return output.stdout;
  }

  remove() { rmSync(this.folder, { recursive: true, force: true }); }
}

// The requests of the log, with their numbers.
function answered(server) {
  return server.log.split('\n').filter(line => line.includes('answered request=')).map(line => Object.fromEntries(
    [...line.matchAll(/(\w+)=("[^"]*"|\S+)/g)].map(([, name, value]) => [name, value.startsWith('"') ? value.slice(1, -1)
      : Number(value)])));
}

function checkTurns(server) {
  const requests = answered(server);
  const first = requests.findIndex(request => request.outcome === 'tool_calls');
  assert.ok(first >= 0, server.log);
  const second = requests.slice(first + 1).find(request => request.prompt > requests[first].prompt);
  const shared = requests[first].prompt + requests[first].generated;
  assert.ok(second.cached >= 0.95 * shared, `cold: ${JSON.stringify(second)}`);
  return requests;
}

async function withAgent(tool, marks, use) {
  const server = await Server.start({ rules: rules(tool, marks), args: ['--ctx', '262144'], passUs: 1000,
    promptTokenUs: 20 });
  const place = new Workplace();
  try {
    await use(server, place);
  } finally {
    place.remove();
    await server.stop();
  }
}

const ls = ['bash', { command: 'ls', description: 'Lists files' }];

test('Claude Code', () => withAgent(['Bash', ls[1]], ['Available agent types'], async (server, place) => {
  const environment = { ANTHROPIC_BASE_URL: server.origin, ANTHROPIC_API_KEY: 'none', ANTHROPIC_MODEL: 'deepseek-v4-flash',
    ANTHROPIC_SMALL_FAST_MODEL: 'deepseek-v4-flash', CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1', DISABLE_AUTOUPDATER: '1' };
  const claude = (...more) => place.run('node', [join(packages, '@anthropic-ai/claude-code/cli-wrapper.cjs'),
    '--allowedTools', 'Bash(ls:*)', ...more], environment);
  assert.equal((await claude('-p', 'list the files')).trim(), answer);
  checkTurns(server);
  // A later process takes up the conversation where it was.
  assert.equal((await claude('--continue', '-p', 'list the files again')).trim(), answer);
  const last = answered(server).filter(request => request.prompt > 10000);
  assert.ok(last[2].cached >= 0.95 * last[1].prompt, JSON.stringify(last[2]));
}));

test('Codex', () => withAgent(['exec_command', { cmd: 'ls' }], [], async (server, place) => {
  place.write('home/.codex/config.toml', `model = "deepseek-v4-flash"
model_provider = "ds4"
model_context_window = 262144
[model_providers.ds4]
name = "ds4"
base_url = "${server.origin}/v1"
wire_api = "responses"
`);
  const codex = (...args) => place.run('node', [join(packages, '@openai/codex/bin/codex.js'), 'exec', ...args,
    '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', '--json']);
  assert.match(await codex('list the files'), new RegExp(answer));
  checkTurns(server);
}));

// Its program comes in packages for one kind of machine each.
const opencode = join(packages, 'opencode-linux-x64-baseline/bin/opencode');

test('opencode', { skip: existsSync(opencode) ? false : 'not for this machine' }, () => withAgent(ls, [], async (server, place) => {
  place.write('project/opencode.json', JSON.stringify({
    $schema: 'https://opencode.ai/config.json', autoupdate: false, share: 'disabled', model: 'ds4/deepseek-v4-flash',
    provider: { ds4: { npm: '@ai-sdk/openai-compatible', name: 'ds4', options: { baseURL: server.origin + '/v1' },
      models: { 'deepseek-v4-flash': { name: 'DeepSeek V4 Flash', reasoning: true, tool_call: true,
        limit: { context: 262144, output: 32000 } } } } },
  }));
  const output = await place.run(opencode, ['run', 'list the files'],
    { OPENCODE_DISABLE_AUTOUPDATE: '1', OPENCODE_DISABLE_MODELS_FETCH: '1', OPENCODE_DISABLE_LSP_DOWNLOAD: '1' });
  assert.match(output, new RegExp(answer));
  checkTurns(server);
}));

test('Pi', () => withAgent(ls, [], async (server, place) => {
  place.write('home/.pi/agent/models.json', JSON.stringify({ providers: { ds4: {
    baseUrl: server.origin + '/v1', api: 'openai-completions', apiKey: 'none',
    models: [{ id: 'deepseek-v4-flash', name: 'DeepSeek V4 Flash', reasoning: true, input: ['text'],
      contextWindow: 262144, maxTokens: 32000, cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 } }],
  } } }));
  const output = await place.run('node', [join(packages, '.bin/pi'), '--provider', 'ds4', '--model', 'deepseek-v4-flash',
    '-p', 'list the files'], { PI_OFFLINE: '1' });
  assert.equal(output.trim(), answer);
  checkTurns(server);
}));
