// Runs the script of a page of `tandem report` without a browser, and prints what is asked of its tree:
// node report_page.js PAGE ID [TAG] prints the texts of the section ID, of its elements TAG a line each.
'use strict';
const fs = require('fs');
const vm = require('vm');

class Node {
  constructor(tag) {
    Object.assign(this, {tag, children: [], attributes: {}, dataset: {}, style: {}, text: ''});
  }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener() {}
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map((one) => one instanceof Node ? one.textContent : String(one)).join(''); }
  all(tag) { return this.children.filter((one) => one instanceof Node).flatMap((one) => [...(one.tag === tag ? [one] : []), ...one.all(tag)]); }
}

const [page, id, tag] = process.argv.slice(2);
const html = fs.readFileSync(page, 'utf8');
const scripts = [...html.matchAll(/<script([^>]*)>([^]*?)<\/script>/g)];
const known = {data: new Node('script'), main: new Node('main'), tip: new Node('div'), runs: new Node('div')};
known.data.textContent = scripts.find((one) => one[1].includes('data'))[2];
const document = {
  body: new Node('body'), title: '',
  getElementById: (name) => known[name],
  querySelector: () => known.main,
  createElement: (name) => new Node(name),
  createElementNS: (_, name) => new Node(name),
};
vm.runInNewContext(scripts.at(-1)[2], {document, JSON, addEventListener() {}, innerWidth: 1000, innerHeight: 800});
const section = known.main.children.find((one) => one.attributes.id === id);
for (const one of tag ? section.all(tag) : [section]) {
  console.log(one.children.map((part) => part instanceof Node ? part.textContent : String(part)).join(' | '));
}
