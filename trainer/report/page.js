'use strict';
// Draws the data of the page's script element. Text of a run is set as text alone, never as HTML.
// A panel that is drawn says so in data-drawn ("yes", or "empty": the runs have nothing for it);
// the body's data-panels counts them when all are there; data-error keeps the first error.
addEventListener('error', (event) => { document.body.dataset.error ||= event.message; });

const runs = JSON.parse(document.getElementById('data').textContent).runs;
const kColors = ['#2f6fb3', '#d9622b', '#3c9a5f', '#8d5bb5', '#c2a21f', '#c4507e', '#4aa7b0', '#7a7a7a'];
const kDashes = ['', '6 3', '2 3', '8 3 2 3'];
const kKinds = {forward: '#9ecae1', backward: '#3182bd', update: '#fd8d3c', copy: '#a1d99b'};
const kOtherKind = '#b8bfc6';
const color = (i) => kColors[i % kColors.length];
const main = document.querySelector('main');
const tip = document.getElementById('tip');

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
function svg(name, attributes = {}, text) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const short = (value) => value === 0 ? '0' : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3
    ? value.toExponential(3).replace(/\.?0+e/, 'e') : String(+value.toPrecision(5));
const bytes = (value) => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return `${+value.toPrecision(4)} ${units[unit]}`;
};
const shown = (value) => value !== null && typeof value === 'object' ? JSON.stringify(value)
    : value === null ? 'none' : typeof value === 'number' ? short(value) : String(value);

function panel(id, title, hint, draw, wide = false) {
  const node = element('section', {id}, element('h2', {}, title, ' ', element('small', {}, hint)));
  if (wide) node.className = 'wide';
  main.append(node);
  let missing;  // why there is nothing, where there is nothing
  try {
    missing = draw(node);
  } catch (error) {  // a file of other types than a run writes costs its panel alone
    missing = 'the run\'s file for it is damaged';
  }
  if (missing) node.append(element('div', {class: 'soft'}, missing));
  node.dataset.drawn = missing ? 'empty' : 'yes';
}
function legend(node, entries) {
  const line = element('div', {class: 'soft'});
  for (const [name, fill] of entries) {
    line.append(element('span', {class: 'swatch', style: `background:${fill}`}), name);
  }
  node.append(line);
}
// Of several runs, each figure's lines differ by their dashes.
function legendOfDashes(node) {
  const line = element('div', {class: 'soft'});
  runs.forEach((run, r) => {
    const sample = svg('svg', {viewBox: '0 0 30 8', style: 'display: inline; width: 30px; height: 8px; margin-left: 10px'});
    sample.append(svg('line', {x1: 0, x2: 30, y1: 4, y2: 4, stroke: 'currentColor', 'stroke-width': 1.4, 'stroke-dasharray': kDashes[r % kDashes.length]}));
    line.append(sample, ` ${run.name}  `);
  });
  node.append(line);
}
function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = 'block';
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}
const hideTip = () => { tip.style.display = 'none'; };

function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * base).find((s) => s >= raw);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9 && found.length < 100; ++i) found.push(i * step);
  return found;
}

// Curves share their range of steps: a zoom of one is a zoom of all.
const W = 560, H = 210, L = 62, R = 10, T = 8, B = 24;
const plots = [];
const whole = [Math.min(...runs.flatMap((run) => Object.values(run.curves).map((c) => c.x[0]))),
               Math.max(...runs.map((run) => run.last_step))];
if (whole[0] >= whole[1]) whole[0] = whole[1] - 1;
let range = [...whole];
function zoom(to) {
  range = to;
  for (const redraw of plots) redraw();
}

function lineOf(line, x, y) {
  let path = '', pen = false;
  line.x.forEach((step, i) => {
    const value = line.y[i];
    if (value === null) { pen = false; return; }
    path += `${pen ? 'L' : 'M'}${x(step).toFixed(1)} ${y(value * line.scale).toFixed(1)}`;
    pen = true;
  });
  return path;
}
function nearest(line, step) {
  let low = 0, high = line.x.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.x[middle] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - line.x[low - 1] < line.x[low] - step ? low - 1 : low;
}

function curves(id, title, unit, names, scale = 1) {
  panel(id, title, unit, (node) => {
    const lines = runs.flatMap((run, r) => names.filter((n) => run.curves[n]?.y.some((v) => v !== null && (names.length === 1 || v !== 0)))
        .map((name) => ({
          ...run.curves[name], scale, name: name.replace(/^exposed_|_s$/g, ''),
          label: names.length > 1 ? name.replace(/^exposed_|_s$/g, '') + (runs.length > 1 ? ` of ${run.name}` : '') : run.name,
          color: names.length > 1 ? color(names.indexOf(name)) : color(r),
          dash: names.length > 1 ? kDashes[r % kDashes.length] : '',
          marks: id === 'loss' ? run.checkpoints : [],
        })));
    if (!lines.length) return names.length > 1 ? 'Nothing was waited for.' : 'No such figure in these runs.';
    const picture = svg('svg', {viewBox: `0 0 ${W} ${H}`});
    node.append(picture);
    if (names.length > 1) legend(node, [...new Map(lines.map((line) => [line.name, line.color]))]);
    if (names.length > 1 && runs.length > 1) legendOfDashes(node);
    const xOf = (step) => L + (step - range[0]) / (range[1] - range[0]) * (W - L - R);
    const stepAt = (event) => {
      const box = picture.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * W;
      return range[0] + Math.min(1, Math.max(0, (at - L) / (W - L - R))) * (range[1] - range[0]);
    };
    const cursor = svg('line', {y1: T, y2: H - B, stroke: 'currentColor', 'stroke-opacity': .4, visibility: 'hidden'});
    const marked = svg('rect', {y: T, height: H - T - B, fill: kColors[0], 'fill-opacity': .15, visibility: 'hidden'});
    const clip = svg('clipPath', {id: `clip-${id}`});
    clip.append(svg('rect', {x: L, y: T - 2, width: W - L - R, height: H - T - B + 4}));

    function redraw() {
      let low = Infinity, high = -Infinity;
      for (const line of lines) {
        line.x.forEach((step, i) => {
          if (step < range[0] || step > range[1] || line.y[i] === null) return;
          low = Math.min(low, line.y[i] * scale);
          high = Math.max(high, line.y[i] * scale);
        });
      }
      if (low > high) [low, high] = [0, 1];
      const room = (high - low) * .05 || Math.abs(high) * .05 || 1;
      [low, high] = [low >= 0 && low < room ? 0 : low - room, high + room];
      const yOf = (value) => H - B - (value - low) / (high - low) * (H - T - B);
      picture.replaceChildren(clip);
      for (const value of ticks(low, high, 4)) {
        picture.append(svg('line', {class: 'grid', x1: L, x2: W - R, y1: yOf(value), y2: yOf(value)}),
                       svg('text', {x: L - 6, y: yOf(value) + 4, 'text-anchor': 'end'}, short(value)));
      }
      for (const step of ticks(range[0], range[1], 8).filter(Number.isInteger)) {
        picture.append(svg('text', {x: xOf(step), y: H - 8, 'text-anchor': 'middle'}, String(step)));
      }
      for (const line of lines) {
        picture.append(svg('path', {d: lineOf(line, xOf, yOf), fill: 'none', stroke: line.color, 'stroke-width': 1.4,
                                    'stroke-dasharray': line.dash, 'clip-path': `url(#clip-${id})`}));
        if (line.x.length === 1 && line.y[0] !== null) {
          picture.append(svg('circle', {cx: xOf(line.x[0]), cy: yOf(line.y[0] * scale), r: 2.5, fill: line.color}));
        }
        for (const saved of line.marks) {
          const mark = svg('path', {d: `M${xOf(saved.step)} ${H - B} l-4 7 h8 z`, fill: line.color});
          mark.append(svg('title', {}, `checkpoint ${saved.name}`));
          if (saved.step >= range[0] && saved.step <= range[1]) picture.append(mark);
        }
      }
      picture.append(cursor, marked);
    }

    let from = null;
    picture.onpointerdown = (event) => { from = stepAt(event); picture.setPointerCapture(event.pointerId); };
    picture.onpointermove = (event) => {
      const step = stepAt(event);
      cursor.setAttribute('x1', xOf(step));
      cursor.setAttribute('x2', xOf(step));
      cursor.setAttribute('visibility', 'visible');
      if (from !== null) {
        marked.setAttribute('x', xOf(Math.min(from, step)));
        marked.setAttribute('width', Math.abs(xOf(step) - xOf(from)));
        marked.setAttribute('visibility', 'visible');
      }
      showTip(event, lines.map((line) => {
        const i = nearest(line, step);
        return `step ${line.x[i]}  ${line.y[i] === null ? 'not finite' : short(line.y[i] * scale)} ${unit}  ${line.label}`;
      }).join('\n'));
    };
    picture.onpointerup = (event) => {
      const to = stepAt(event);
      marked.setAttribute('visibility', 'hidden');
      const wanted = [Math.min(from ?? to, to), Math.max(from ?? to, to)];
      from = null;
      if (wanted[1] - wanted[0] > (range[1] - range[0]) / 50) zoom(wanted);
    };
    picture.onpointerleave = () => { hideTip(); cursor.setAttribute('visibility', 'hidden'); };
    picture.ondblclick = () => zoom([...whole]);
    plots.push(redraw);
    redraw();
  });
}

// By the span's word on the compute lane, elsewhere by whose row it is.
function kindOf(row, name) {
  if (/compute$/.test(row)) return kKinds[name.split(' ')[0]] ?? kOtherKind;
  if (/optimizer|updates/.test(row)) return kKinds.update;
  return /copy|h2d|d2h|gathers|reductions/.test(row) ? kKinds.copy : kOtherKind;
}
function timeline() {
  panel('timeline', 'Overlap', 'who worked when, in the last steps of the trace; wheel: zoom, double click: all', (node) => {
    const traced = runs.filter((run) => run.trace && run.trace.spans.length);
    if (!traced.length) return 'No trace in these runs; --trace writes one.';
    for (const run of traced) {
      const {rows, spans, steps, length_us: length, cut} = run.trace;
      const width = 1180, left = 150, row = 20, top = 22;
      const height = top + rows.length * (row + 4) + 22;
      const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`});
      let window = [0, length];
      const draw = () => {
        const x = (us) => left + (us - window[0]) / (window[1] - window[0]) * (width - left - 8);
        picture.replaceChildren();
        spans.forEach(([line, name, start, duration]) => {
          const end = start + duration;
          if (end < window[0] || start > window[1]) return;
          const x1 = Math.max(left, x(start));
          const rect = svg('rect', {x: x1, y: top + line * (row + 4), height: row, fill: kindOf(rows[line], name),
                                    width: Math.max(.4, Math.min(width - 8, x(end)) - x1)});
          rect.onpointermove = (event) => showTip(event, `${name}: ${short(duration / 1000)} ms, at ${short(start / 1000)} ms`);
          rect.onpointerleave = hideTip;
          picture.append(rect);
        });
        rows.forEach((name, i) => picture.append(svg('text', {x: left - 8, y: top + i * (row + 4) + 14, 'text-anchor': 'end'}, name)));
        for (const {at_us: at, step} of steps) {
          if (at < window[0] || at > window[1]) continue;
          picture.append(svg('line', {x1: x(at), x2: x(at), y1: 4, y2: height - 20, stroke: 'currentColor', 'stroke-dasharray': '4 3', 'stroke-opacity': .5}));
          if (at < length) picture.append(svg('text', {x: x(at) + 4, y: 13}, `step ${step}`));
        }
        for (const at of ticks(window[0] / 1000, window[1] / 1000, 10)) {
          picture.append(svg('text', {x: x(at * 1000), y: height - 5, 'text-anchor': 'middle'}, `${short(at)} ms`));
        }
      };
      picture.addEventListener('wheel', (event) => {
        event.preventDefault();
        const box = picture.getBoundingClientRect();
        const share = Math.min(1, Math.max(0, ((event.clientX - box.left) / box.width * width - left) / (width - left - 8)));
        const at = window[0] + share * (window[1] - window[0]);
        const factor = event.deltaY < 0 ? .8 : 1.25;
        window = [Math.max(0, at - (at - window[0]) * factor), Math.min(length, at + (window[1] - at) * factor)];
        draw();
      }, {passive: false});
      picture.ondblclick = () => { window = [0, length]; draw(); };
      draw();
      if (traced.length > 1) node.append(element('div', {class: 'soft'}, run.name));
      node.append(picture);
      if (cut) node.append(element('div', {class: 'soft'}, 'The longest spans; the trace has more.'));
    }
    legend(node, [['forward', kKinds.forward], ['backward', kKinds.backward], ['update', kKinds.update],
                  ['copies, gathers, reductions', kKinds.copy], ['the rest', kOtherKind]]);
  }, true);
}

function table(node, head, rows) {
  const body = element('table', {}, element('tr', {}, ...head.map((text) => element('th', {}, text))));
  for (const row of rows) body.append(element('tr', {}, ...row.map((cell) => element('td', {}, shown(cell)))));
  node.append(element('div', {class: 'scroll'}, body));
}
// One table over all runs: [column of the run's name where there are several, ...].
function tables(id, title, hint, head, rowsOf, missing, wide = false) {
  panel(id, title, hint, (node) => {
    const several = runs.length > 1;
    const rows = runs.flatMap((run) => rowsOf(run).map((row) => several ? [run.name, ...row] : row));
    if (!rows.length) return missing;
    table(node, several ? ['run', ...head] : head, rows);
  }, wide);
}
// One table with a column per run: [[name, value], ...] of each.
function columns(id, title, hint, name, rowsOf, missing) {
  panel(id, title, hint, (node) => {
    const found = runs.map((run) => new Map(rowsOf(run)));
    const names = [...new Set(found.flatMap((rows) => [...rows.keys()]))];
    if (!names.length) return missing;
    table(node, [name, ...(runs.length > 1 ? runs.map((run) => run.name) : ['value'])],
          names.map((one) => [one, ...found.map((rows) => rows.has(one) ? rows.get(one) : '')]));
  }, runs.length > 2);
}
const entries = (object) => Object.entries(object ?? {});
const flat = (list) => list.flatMap(([key, value]) => value !== null && typeof value === 'object'
    ? entries(value).map(([name, part]) => [`${key}.${name}`, part]) : [[key, value]]);

function memoryRows(run) {
  const plan = run.memory?.rank ?? {};
  const measured = run.summary?.memory ?? {};
  return ['device', 'pinned', 'host', 'shared', 'disk'].flatMap((kind) => {
    const {total = 0, ...parts} = plan[kind] ?? {};
    const found = measured[kind]?.actual_bytes;
    if (!total && found === undefined) return [];
    const list = entries(parts).sort((a, b) => b[1] - a[1]).map(([name, size]) => `${name} ${bytes(size)}`);
    return [[kind, bytes(measured[kind]?.predicted_bytes ?? total), found === undefined ? 'not measured' : bytes(found), list.join(', ')]];
  });
}
const ms = (seconds) => short(seconds * 1000);
const commsRow = (row) => [row.operation, bytes(row.message_bytes), row.count, ms(row.total_s), ms(row.total_s / row.count),
                           ms(row.exposed_s), row.straggler_s === undefined ? '' : ms(row.straggler_s), row.algorithm_gbps, row.bus_gbps];
// The tree of modules as rows, each with its depth as an indent.
function moduleRows(run) {
  if (!run.flops?.model) return [];
  const whole = run.flops.model;
  const share = (part, of) => of > 0 ? ` (${(100 * part / of).toFixed(1)} %)` : '';
  const rows = [];
  const walk = (module, depth) => {
    const timed = module.forward_s !== undefined;
    const rate = timed && module.forward_s > 0 ? module.forward_flops / module.forward_s : 0;
    rows.push([`${'\u2003'.repeat(depth)}${module.name}`, `${short(module.parameters)}${share(module.parameters, whole.parameters)}`,
               `${short(module.forward_flops / 1e9)}${share(module.forward_flops, whole.forward_flops)}`,
               timed ? `${ms(module.forward_s)}${share(module.forward_s, whole.forward_s)}` : '', timed ? ms(module.backward_s) : '',
               rate ? short(rate / 1e9) : '', rate && run.flops.peak_tflops > 0 ? `${(rate / run.flops.peak_tflops / 1e10).toFixed(1)} %` : '']);
    module.parts.forEach((part) => walk(part, depth + 1));
  };
  walk(whole, 0);
  return rows;
}
function keyRow(line) {  // "path: value  applied" or "path: value  not applicable: reason"
  const at = line.search(/ {2}(applied|not applicable)/);
  const colon = line.indexOf(': ');
  return at < 0 || colon < 0 || colon > at ? [line, '', ''] : [line.slice(0, colon), line.slice(colon + 2, at), line.slice(at + 2)];
}

const list = document.getElementById('runs');
runs.forEach((run, r) => {
  const ended = run.summary ? `ended: ${run.summary.ended ?? 'done'}` : 'has not ended, or was cut off: no summary.json';
  const said = [`${run.steps} steps, the last is ${run.last_step}`, ended];
  if (run.per_bucket > 1) said.push(`curves show the smallest and the largest of each ${run.per_bucket} steps`);
  if (run.not_finite) said.push(`${run.not_finite} figures are not finite: gaps`);
  if (run.unread_lines) said.push(`${run.unread_lines} lines of metrics.jsonl could not be read`);
  if (run.absent.length) said.push(`absent: ${run.absent.join(', ')}`);
  list.append(element('div', {}, element('span', {class: 'swatch', style: `background:${color(r)}`}), run.name,
                     element('span', {class: 'soft'}, ` ${said.join('; ')}`)));
});
document.title = `Tandem: ${runs.map((run) => run.name).join(', ')}`;

curves('loss', 'Loss', '', ['loss']);
curves('eval', 'Evaluation loss', '', ['eval_loss']);
curves('norm', 'Gradient norm', '', ['grad_norm']);
curves('rate', 'Learning rate', '', ['lr']);
curves('tokens', 'Throughput', 'tokens/s', ['tokens_per_s']);
curves('time', 'Step time', 'ms', ['step_time_s'], 1000);
curves('exposed', 'Exposed: the compute lane waited', 'ms',
       ['optimizer', 'gather', 'reduce', 'data', 'checkpoint', 'activation', 'disk'].map((name) => `exposed_${name}_s`), 1000);
curves('peak', 'Peak of host memory', 'MiB', ['peak_host_bytes'], 2 ** -20);
timeline();
tables('memory', 'Memory', 'planned for a rank, and measured', ['where', 'planned', 'measured', 'parts of the plan'], memoryRows,
       'Neither a plan nor a measurement in these runs.', true);
columns('summary', 'Summary', '', 'figure',
       (run) => flat(entries(run.summary).filter(([key]) => !['memory', 'flags', 'speculation'].includes(key))), 'No summary.json in these runs.');
tables('speculation', 'Speculation', '', ['figure', 'value'],
       (run) => [['steps that began updates ahead of the verdict', run.speculated], ['rolled back or skipped', run.unusual],
                 ...run.verdicts.map(({step, what}) => [`step ${step}`, what])], '');
tables('comms', 'Communication', 'of rank 0; ms, Gbit/s; exposed: the compute lane waited; straggler: beyond the fastest rank',
       ['operation', 'message', 'count', 'total', 'each', 'exposed', 'straggler', 'algbw', 'busbw'],
       (run) => (run.comms?.rows ?? []).map(commsRow), 'Nothing was logged; comms_logger.enabled in the config asks for it.', true);
tables('modules', 'Modules', 'of one step: flops_profiler; GFLOP, ms, GFLOP/s',
       ['module', 'parameters', 'forward GFLOP', 'forward', 'backward', 'GFLOP/s', 'of the peak'],
       moduleRows, 'No profile; flops_profiler.enabled in the config asks for it.', true);
tables('checkpoints', 'Checkpoints', 'in the run\'s folder', ['name', 'size', 'whole'],
       (run) => run.checkpoints.map((saved) => [saved.name, bytes(saved.bytes), saved.whole ? 'yes' : 'no: slices, or no manifest']), 'None; --save_every N writes them.');
columns('flags', 'Flags', 'as typed', 'flag', (run) => entries(run.summary?.flags), 'None, or no summary.json.');
tables('start', 'Start', 'data, cores, placement', ['line'], (run) => run.notes.filter((line) => line).map((line) => [line]), 'No notes.txt in these runs.', true);
tables('keys', 'Config keys', 'what became of each', ['key', 'value', 'what became of it'], (run) => run.keys.filter((line) => line).map(keyRow),
       'The runs had no config file.', true);
panel('config', 'Resolved config', '', (node) => {
  const found = runs.filter((run) => run.config);
  for (const run of found) {
    if (runs.length > 1) node.append(element('div', {class: 'soft'}, run.name));
    node.append(element('pre', {class: 'scroll'}, JSON.stringify(run.config, null, 1)));
  }
  return found.length ? '' : 'No resolved_config.json in these runs.';
}, true);
document.body.dataset.panels = main.children.length;
