// A `ds4-server` with scripted answers, or with the bundled model, for the tests of real clients.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const dsml = '｜DSML｜';

// One call as the model writes it. Values that are not strings are JSON.
export function call(name, values) {
  const parameters = Object.entries(values).map(([key, value]) => {
    const isText = typeof value === 'string';
    return `<${dsml}parameter name="${key}" string="${isText}">${isText ? value : JSON.stringify(value)}</${dsml}parameter>\n`;
  });
  return `<${dsml}invoke name="${name}">\n${parameters.join('')}</${dsml}invoke>\n`;
}

export const block = (...calls) => `\n\n<${dsml}tool_calls>\n${calls.join('')}</${dsml}tool_calls>`;

export const exactCommand = 'cat > a.html <<EOF\n<b>&amp; "quoted" \\n</b>\t日本\nEOF\n';

export const weatherRules = [
  { when: 'endless', text: '</think>' + 'on and on ', endless: true },
  { when: '<tool_result>', text: 'They answered.</think>Sunny in both.' },
  { when: 'weather', text: 'Two cities.</think>I ask.' +
      block(call('weather', { city: 'Lisbon', days: 3 }), call('weather', { city: '東京', days: 1 })) },
  { when: 'exactly', text: 'Go.</think>' + block(call('shell', { command: exactCommand })) },
  { when: 'as json', text: 'Go.</think>{"city":"Lisbon","degrees":21}' },
  { when: 'unwilling', text: 'Go.</think>I would rather not.' },
  { when: 'greet', text: 'A greeting.</think>Hello there!' },
];

export class Server {
  static async start({ rules = weatherRules, args = [], passUs = 0, promptTokenUs = 0 } = {}) {
    const server = new Server();
    server.log = '';
    let command = [process.env.DS4_SERVER_PROGRAM];
    if (rules) {
      server.folder = mkdtempSync(join(tmpdir(), 'ds4-rules-'));
      const file = join(server.folder, 'rules.json');
      writeFileSync(file, JSON.stringify({
        replies: [...rules, { when: '', text: 'Well.</think>Fine.' }], pass_us: passUs, prompt_token_us: promptTokenUs,
      }));
      command = [process.env.DS4_SCRIPTED_SERVER, file];
    }
    command.push('-m', process.env.DS4_MODEL, '--port', '0', ...args);
    server.process = spawn(command[0], command.slice(1), { stdio: ['ignore', 'ignore', 'pipe'] });
    server.exit = new Promise(resolve => server.process.on('exit', resolve));
    await new Promise((resolve, reject) => {
      server.process.on('error', reject);
      server.process.on('exit', () => reject(new Error(server.log)));
      server.process.stderr.on('data', data => {
        server.log += data;
        const found = /listening on (http:\/\/\S+)/.exec(server.log);
        if (found) resolve(server.origin = found[1]);
      });
    });
    return server;
  }

  async metric(name) {
    const text = await (await fetch(this.origin + '/metrics')).text();
    return text.split('\n').filter(line => line.startsWith(name))
      .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0);
  }

  // Waits until a condition holds; at most some seconds.
  static async until(condition, what, seconds = 5) {
    for (const end = Date.now() + 1000 * seconds; !(await condition());) {
      if (Date.now() > end) throw new Error(`this did not come: ${what}`);
      await new Promise(resolve => setTimeout(resolve, 20));
    }
  }

  async stop() {
    this.process.kill('SIGTERM');
    const status = await this.exit;
    if (this.folder) rmSync(this.folder, { recursive: true });
    if (status !== 0) throw new Error(`the server ended with ${status}:\n${this.log}`);
  }
}
