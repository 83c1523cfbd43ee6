// The body of a function that returns what keeps people from using the page: names, headings, contrast.

const faults = [];
const visible = (node) => node.checkVisibility() && !node.closest('.visually-hidden');
const name = (node) => node.getAttribute('aria-label') || node.labels?.[0]?.textContent.trim() || node.textContent.trim();
for (const node of document.querySelectorAll('button, input, textarea, a, summary, [tabindex="0"]')) {
  if (!name(node)) faults.push(`no name: ${node.outerHTML.slice(0, 80)}`);
}
for (const node of document.querySelectorAll('[role="img"], [role="meter"]')) {
  if (!node.getAttribute('aria-label')) faults.push(`no text: ${node.outerHTML.slice(0, 80)}`);
}
for (const node of document.querySelectorAll('img:not([alt]), [tabindex]:not([tabindex="0"]):not([tabindex="-1"])')) {
  faults.push(`bad: ${node.outerHTML.slice(0, 80)}`);
}
const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
faults.push(...ids.filter((id, index) => ids.indexOf(id) !== index).map((id) => `twice: ${id}`));
for (const node of document.querySelectorAll('[aria-labelledby], [aria-describedby], label[for]')) {
  const targets = (node.getAttribute('aria-labelledby') ?? node.getAttribute('aria-describedby') ?? node.htmlFor).split(' ');
  faults.push(...targets.filter((id) => !document.getElementById(id)).map((id) => `leads nowhere: ${id}`));
}
let level = 0;
for (const heading of document.querySelectorAll('h1, h2, h3, h4')) {
  const next = Number(heading.tagName[1]);
  if (next > level + 1) faults.push(`heading skips: ${heading.textContent}`);
  level = next;
}
for (const part of ['main', 'header', 'aside', 'h1']) {
  if (document.querySelectorAll(part).length !== 1) faults.push(`not one ${part}`);
}
if (!document.documentElement.lang) faults.push('no language');

const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
function light(colour) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  if (a < 255) return null;
  const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}
const contrast = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
function ground(node) {
  for (let at = node; at; at = at.parentElement) {
    const found = light(getComputedStyle(at).backgroundColor);
    if (found !== null) return found;
  }
  return 1;
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let checked = 0;
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || node.closest('svg') || !visible(node) || node.closest(':disabled')) continue;
  checked += 1;
  const ratio = contrast(light(getComputedStyle(node).color), ground(node));
  if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${walker.currentNode.data.trim().slice(0, 40)}`);
}
if (checked < 30) faults.push(`only ${checked} texts were checked`);
const colour = (variable) => light(getComputedStyle(document.documentElement).getPropertyValue(variable));
for (let index = 0; index < 8; index += 1) {
  if (contrast(colour(`--node-${index}`), colour('--on-node')) < 4.5) faults.push(`contrast on node ${index}`);
  if (contrast(colour(`--node-${index}`), colour('--card')) < 3) faults.push(`contrast of node ${index}`);
}
return faults;
