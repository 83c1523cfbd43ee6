// Small helpers for the document: elements are made once and changed only where something changed.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const element = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function setText(node, text) {
  const value = String(text);
  if (node.textContent !== value) node.textContent = value;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, value);
  }
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/** Make the children of `parent` those of `items`: known ones stay the same elements, so focus and motion last. */
export function keepChildren(parent, items, { key, make, update }) {
  parent.kept ??= new Map();
  const kept = new Map();
  let before = null;
  for (const item of items) {
    const name = key(item);
    const child = parent.kept.get(name) ?? make(item);
    update(child, item);
    kept.set(name, child);
    const place = before === null ? parent.firstChild : before.nextSibling;
    if (child !== place) parent.insertBefore(child, place);
    before = child;
  }
  for (const [name, child] of parent.kept) if (kept.get(name) !== child) child.remove();
  parent.kept = kept;
}

/** Draw into `holder` at its present width; the drawing before it is replaced in one step. */
export function draw(holder, drawing) {
  holder.replaceChildren(drawing);
}
